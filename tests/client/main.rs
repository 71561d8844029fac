//! The client: every verb against beanring under each driver, and against beanstalkd; and `beanring top`.

mod completions;
mod fake;
mod jobs;
mod liar;
mod movement;
mod output;
mod place;
mod put;
mod schedules;
mod server;
mod session;
mod times;
mod tls;
mod top;
mod traps;
mod vocabulary;
mod work;
