//! Tiers as requested: `pcie4:64GiB` of a known machine, `DIR:64GiB` of this one. Invariant: a
//! folder's rates are measured in that folder.

use std::path::PathBuf;

use thiserror::Error;
use tightfit::exit::coded;
use tightfit::machine::{Machine, MachineError};
use tightfit::units::Bytes;
use tightfit_engine::{TierError, tier};

use crate::failure::Result;
use crate::values::{NotASize, size};

/// Why a text does not denote a tier.
#[derive(Debug, Error)]
pub enum NotATier {
    /// It names nothing.
    #[error("no folder is named for the tier; write a folder, or a folder and a size: DIR:64GiB")]
    Nameless,
    /// What follows the colon is no size.
    #[error(transparent)]
    Size(#[from] NotASize),
}

/// A folder for a tier, with the size of its file if that is limited.
pub struct Folder {
    /// The folder.
    pub folder: PathBuf,
    /// The most bytes.
    pub size: Option<Bytes>,
}

impl Folder {
    /// A folder, or one followed by a colon and a size.
    pub fn parse(text: &str) -> Result<Folder, NotATier> {
        let (folder, size) = parts(text)?;
        if folder.is_empty() {
            return Err(NotATier::Nameless);
        }
        Ok(Folder { folder: PathBuf::from(folder), size })
    }

    /// Gives a machine a tier in the folder, with its measured rates.
    pub fn add_to(&self, machine: &mut Machine, throttle: Option<f64>) -> Result<(), TierError> {
        if tier::lies_in_memory(&self.folder) {
            note!(
                "note: {} lies in memory (tmpfs), not on a disk: what is moved there is outside of \
                 the budget, but takes this machine's memory all the same",
                self.folder.display()
            );
        }
        let (tier, mut links) = tier::measure(&self.folder, self.size)?;
        for link in &mut links {
            link.bandwidth = link.bandwidth.min(throttle.unwrap_or(f64::INFINITY));
        }
        let [out, back] = links;
        machine.hierarchy.add(tier, out, back);
        Ok(())
    }
}

/// A machine with the preset of a tier below it.
pub fn preset(machine: Machine, text: &str) -> Result<Machine> {
    let (name, size) = parts(text)?;
    let with_tier: Result<Machine, MachineError> = machine.with_tier(name, size);
    Ok(with_tier?)
}

/// What stands before the last colon, and the size after it. A name may contain colons, too.
fn parts(text: &str) -> Result<(&str, Option<Bytes>), NotASize> {
    match text.rsplit_once(':') {
        Some((name, bytes)) if !bytes.contains(['/', '\\']) => Ok((name, Some(size(bytes)?))),
        Some(_) | None => Ok((text, None)),
    }
}

coded!(Usage: NotATier);
