//! What the integration tests share: conversations as data files, and servers to hold them with.

pub mod beanstalkd;
pub mod conversation;
pub mod core;
pub mod diagnosis;
pub mod driver;
pub mod hold;
pub mod kernel;
pub mod landlock;
pub mod lines;
pub mod live;
pub mod pattern;
pub mod peer;
pub mod program;
pub mod random;
pub mod runner;
pub mod signals;
pub mod unserved;
