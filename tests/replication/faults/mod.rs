//! Faults of servers, networks and databases: real processes, clients that record every reply, and a check of what is left.
//!
//! Each kind of fault occurs a few times. A variable says how often instead, and prints the same results (docs/internals/TESTING.md).

mod check;
mod clients;
mod cuts;
mod damage;
mod database;
mod extensions;
mod figures;
mod full;
mod keyed_puts;
mod kills;
mod link;
mod old_news;
mod place;
mod preload;
mod record;
mod rolls;
mod run;
mod said;
mod schedules;
mod stops;
