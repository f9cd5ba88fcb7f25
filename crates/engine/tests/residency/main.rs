//! The adaptive residency manager: published cases, laws, and a judge that is damaged on purpose.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod adaptive;
mod gemini;
mod optimal;
mod unequal;
mod verify;
