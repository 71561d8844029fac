//! The job log: on real disks, in memory, read by its tools, imported from beanstalkd, and damaged.

mod backup;
mod binlog;
mod closing;
mod common;
mod damage;
mod disks;
mod hostile_bodies;
mod hostile_directory;
mod live;
mod reservations;
mod restored;
mod schedules;
mod shortage;
mod stall;
mod sweep;
mod tools;
mod window;
