//! The sources themselves: the order of the modules, the test kit, and the messages beside the runbook.

mod kit;
mod layers;
mod runbook;
