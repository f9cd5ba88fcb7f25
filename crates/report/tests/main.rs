//! All tests of reports and traces in one binary.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod page;
mod random_courses;
mod trace;
