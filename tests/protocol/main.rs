//! The beanstalk protocol: scripted and random sessions, with the core in memory, with servers and with beanstalkd, and the fuzz corpus.

mod core;
mod differential;
mod fuzz_corpus;
mod live;
