//! The adaptive residency manager: published cases, laws, and a judge that is damaged on purpose.

mod adaptive;
mod gemini;
mod optimal;
mod unequal;
mod verify;
