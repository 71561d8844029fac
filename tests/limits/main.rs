//! The limits of memory and of connections, and the memory that the process takes.

mod ceilings;
mod rss;
mod sender;
