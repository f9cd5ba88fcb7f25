//! The tier below the slab: a file. Invariant: all of its bytes are allocated before the first
//! step, and it has no name, so that nothing is left of it however the process ends; what is read
//! is what was written there last, or an error says that it is not.
//!
//! The system's page cache is bypassed if the file system allows it (`O_DIRECT`): otherwise what is
//! in the tier would be held twice, and copying it would take processor time from the step.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use thiserror::Error;
use tightfit::exit::{Coded, Exit};
use tightfit::machine::{Link, Tier};
use tightfit::units::{Bytes, Seconds};

use crate::memory::slab::{Slab, SlabError};

/// Reads and writes have offsets, in the file and in memory, and sizes that are multiples of this.
pub const BLOCK: Bytes = Bytes(4096);
/// Bytes of a chunk, which is read or written at once and has a checksum.
pub(crate) const CHUNK: u64 = 1 << 20;

/// Why a tier cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TierError {
    /// No file can be created in the folder.
    #[error("no tier can be made in {}: {error}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The folder does not have this many bytes.
    #[error(
        "the tier takes {needed}, and {} has no room for that: {error}; name a folder with more, \
         or allow a larger budget", folder.display()
    )]
    Room {
        /// The folder.
        folder: PathBuf,
        /// The bytes of the tier.
        needed: Bytes,
        /// What the system says.
        error: io::Error,
    },
    /// A part of it cannot be read or written.
    #[error(
        "the tier in {} failed at byte {at}: {}", folder.display(), in_words(error)
    )]
    Io {
        /// The folder.
        folder: PathBuf,
        /// The first byte of what was requested.
        at: u64,
        /// What the system says.
        error: io::Error,
    },
    /// What was read is not what was written.
    #[error(
        "the tier in {} is damaged: bytes {at} to {} are not those that were written there; the \
         disk below it cannot be trusted", folder.display(), at + bytes
    )]
    Damaged {
        /// The folder.
        folder: PathBuf,
        /// The first byte of the damaged part.
        at: u64,
        /// Its size.
        bytes: u64,
    },
    /// The tier failed before, and that failure was reported then.
    #[error("the tier failed before")]
    Failed,
    /// The system refused memory for reading and writing.
    #[error(transparent)]
    Memory(#[from] SlabError),
}

impl Coded for TierError {
    fn exit(&self) -> Exit {
        match self {
            TierError::Memory(error) => error.exit(),
            TierError::Damaged { .. } => Exit::Content,
            TierError::Folder { .. }
            | TierError::Room { .. }
            | TierError::Io { .. }
            | TierError::Failed => Exit::File,
        }
    }
}

/// What the system says, in clearer words if it says little.
fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the file ends before".to_string(),
        _ => error.to_string(),
    }
}

/// Checksums of the chunks of one buffer.
pub(crate) type Checksums = Arc<[AtomicU32]>;

/// A tier that is a file without a name.
#[derive(Debug)]
pub struct TierFile {
    file: File,
    folder: PathBuf,
    bytes: Bytes,
    is_direct: bool,
    /// The checksums of each buffer, by its address.
    checksums: HashMap<u64, Checksums>,
}

impl TierFile {
    /// A file of `bytes` in a folder.
    ///
    /// # Errors
    /// If the folder takes no file, or has no space for this many bytes.
    pub fn create(folder: &Path, bytes: Bytes) -> Result<TierFile, TierError> {
        let refused = |error| TierError::Folder { folder: folder.to_path_buf(), error };
        let file = tempfile::tempfile_in(folder).map_err(refused)?;
        let mut tier = TierFile {
            file,
            folder: folder.to_path_buf(),
            bytes,
            is_direct: false,
            checksums: HashMap::new(),
        };
        allocate(&tier.file, bytes).map_err(|error| TierError::Room {
            folder: folder.to_path_buf(),
            needed: bytes,
            error,
        })?;
        if let Some(direct) = direct(&tier.file)? {
            (tier.file, tier.is_direct) = (direct, true);
        }
        Ok(tier)
    }

    /// Its size.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Whether it bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Reserves the checksums of a buffer.
    pub(crate) fn declare(&mut self, address: u64, bytes: u64) -> Checksums {
        let chunks = bytes.div_ceil(CHUNK) as usize;
        let known = self.checksums.entry(address);
        let known = known.or_insert_with(|| Arc::new([]));
        if known.len() < chunks {
            *known = (0..chunks).map(|_| AtomicU32::new(0)).collect();
        }
        Arc::clone(known)
    }

    /// The checksums of a buffer that was declared.
    pub(crate) fn checksums(&self, address: u64) -> Option<Checksums> {
        self.checksums.get(&address).cloned()
    }

    /// Writes a chunk of the buffer at `address`, `from` bytes after its beginning.
    pub(crate) fn write(
        &self,
        address: u64,
        from: u64,
        bytes: &[u8],
        checksums: &[AtomicU32],
    ) -> Result<(), TierError> {
        write_at(&self.file, bytes, address + from)
            .map_err(|error| self.failed(address + from, error))?;
        checksums[(from / CHUNK) as usize].store(crc32c::crc32c(bytes), Ordering::Release);
        Ok(())
    }

    /// Reads a chunk of the buffer at `address` and compares it with its checksum.
    pub(crate) fn read(
        &self,
        address: u64,
        from: u64,
        bytes: &mut [u8],
        checksums: &[AtomicU32],
    ) -> Result<(), TierError> {
        let at = address + from;
        read_at(&self.file, bytes, at).map_err(|error| self.failed(at, error))?;
        let expected = checksums[(from / CHUNK) as usize].load(Ordering::Acquire);
        if crc32c::crc32c(bytes) == expected {
            return Ok(());
        }
        let (folder, bytes) = (self.folder.clone(), bytes.len() as u64);
        Err(TierError::Damaged { folder, at, bytes })
    }

    fn failed(&self, at: u64, error: io::Error) -> TierError {
        TierError::Io { folder: self.folder.clone(), at, error }
    }
}

/// Measures a tier in a folder with a temporary file, for plans.
pub fn measure(folder: &Path, capacity: Option<Bytes>) -> Result<(Tier, [Link; 2]), TierError> {
    /// Chunks that are written and read, if the capacity allows this many.
    const CHUNKS: u64 = 48;
    let room = capacity.map_or(u64::MAX, |most| (most.0 / CHUNK).max(1));
    let mut chunks = CHUNKS.min(room);
    let mut tier = loop {
        match TierFile::create(folder, Bytes(chunks * CHUNK)) {
            // A small folder may have space for a small tier.
            Err(TierError::Room { .. }) if chunks > 1 => chunks /= 2,
            tier => break tier?,
        }
    };
    let mut staging = Slab::new(Bytes(CHUNK))?;
    let checksums = tier.declare(0, chunks * CHUNK);
    let block = staging.write(0, CHUNK);
    block.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 / 7) as u8);
    let mut seconds = |is_read: bool, bytes: u64| -> Result<f64, TierError> {
        let mut times = Vec::with_capacity(chunks as usize);
        for chunk in 0..chunks {
            let part = staging.write(0, bytes);
            let begun = Instant::now();
            match is_read {
                true => tier.read(0, chunk * CHUNK, part, &checksums)?,
                false => tier.write(0, chunk * CHUNK, part, &checksums)?,
            }
            times.push(begun.elapsed().as_secs_f64());
        }
        // The mean: an operation that is slow now and then is slow in a step, too.
        Ok(times.iter().sum::<f64>() / times.len() as f64)
    };
    // Small ones first, since each chunk is compared with the checksum of what was last written
    // there.
    let latencies = [seconds(false, BLOCK.0)?, seconds(true, BLOCK.0)?];
    let chunks = [seconds(false, CHUNK)?, seconds(true, CHUNK)?];
    let links = [0, 1].map(|way| {
        let bandwidth = CHUNK as f64 / chunks[way].max(1e-9);
        Link { latency: Seconds(latencies[way]), bandwidth }
    });
    Ok((Tier { name: "disk".to_string(), capacity, block: BLOCK }, links))
}

/// Whether the files of a folder lie in memory, so that a tier there takes as much of it as it
/// saves; false if the system does not say.
pub fn lies_in_memory(folder: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        // statfs(2): the kinds of tmpfs and of ramfs.
        const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
        rustix::fs::statfs(folder).is_ok_and(|known| IN_MEMORY.contains(&(known.f_type as u32)))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = folder;
        false
    }
}

/// Allocates all bytes of a file now, unless the system refuses.
fn allocate(file: &File, bytes: Bytes) -> io::Result<()> {
    if bytes == Bytes::ZERO {
        return Ok(());
    }
    #[cfg(target_os = "linux")]
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes.0) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    let zeros = vec![0; CHUNK as usize];
    let mut at = 0;
    while at < bytes.0 {
        let part = &zeros[..(bytes.0 - at).min(CHUNK) as usize];
        write_at(file, part, at)?;
        at += part.len() as u64;
    }
    file.sync_data()
}

/// The same file without the page cache; none if the file system does not support that.
#[cfg(target_os = "linux")]
fn direct(file: &File) -> Result<Option<File>, TierError> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    let Ok(direct) = options.open(again) else { return Ok(None) };
    // Some file systems open it this way and refuse to read.
    let mut probe = Slab::new(BLOCK)?;
    let is_empty = file.metadata().is_ok_and(|known| known.len() < BLOCK.0);
    let works = is_empty || read_at(&direct, probe.write(0, BLOCK.0), 0).is_ok();
    Ok(works.then_some(direct))
}

#[cfg(not(target_os = "linux"))]
fn direct(_: &File) -> Result<Option<File>, TierError> {
    Ok(None)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        let written = file.seek_write(bytes, at)?;
        (bytes, at) = (&bytes[written..], at + written as u64);
    }
    Ok(())
}

#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_read(bytes, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => (bytes, at) = (&mut bytes[read..], at + read as u64),
        }
    }
    Ok(())
}
