//! The load generator `beanring-bench`.

mod compare;
mod tool;
