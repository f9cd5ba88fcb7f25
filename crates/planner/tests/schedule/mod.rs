//! Schedules: addresses and files.

mod layout;
mod moving;
mod plan_file;
