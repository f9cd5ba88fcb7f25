//! The adaptive residency manager: published cases, laws, and moves that are wrong on purpose.

mod adaptive;
mod gemini;
mod optimal;
mod unequal;
mod verify;
