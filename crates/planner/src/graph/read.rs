//! A graph from the bytes of a file, plain or gzip. Invariant: reading what was written gives the
//! same graph; no bytes whatever make the reader panic, or hold more than [`HELD_TEXT`] in addition
//! to the file's own bytes and the graph that it is about to accept.

use std::io::{self, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;

use crate::exit::{Coded, Exit, coded};
use crate::graph::Graph;
use crate::graph::document::Document;
use crate::graph::error::{GraphError, ReadError};
use crate::graph::limits::{FORMAT, HELD_TEXT, LONGEST_NAME, MOST_OF_AN_EVENT, MOST_TEXT};
use crate::reading::{BoundedText, Excess, Object, Within, excess, format_of};

/// The first bytes of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The most bytes in which JSON writes one byte of a name.
const ESCAPED: usize = 6;

/// Reads a graph from the bytes of a file.
pub fn read(bytes: &[u8]) -> Result<Graph, ReadError> {
    if bytes.starts_with(&GZIP) {
        return read_from(bytes);
    }
    if bytes.len() as u64 > MOST_TEXT {
        return Err(Excess::of_bytes("a graph", MOST_TEXT).into());
    }
    held(bytes)
}

/// Reads a graph from a file that is not in memory. Of a long file only a window is ever held.
pub fn read_from(mut source: impl Read) -> Result<Graph, ReadError> {
    let mut start = Vec::new();
    source.by_ref().take(GZIP.len() as u64).read_to_end(&mut start).map_err(ReadError::Io)?;
    let is_packed = start == GZIP;
    let whole = Cursor::new(start).chain(source);
    if is_packed { text(MultiGzDecoder::new(whole), damaged) } else { text(whole, ReadError::Io) }
}

/// Separates decompression errors from those of the system.
fn damaged(error: io::Error) -> ReadError {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            ReadError::Gzip(error)
        }
        _ => ReadError::Io(error),
    }
}

fn text(source: impl Read, failed: fn(io::Error) -> ReadError) -> Result<Graph, ReadError> {
    let refused = |error: io::Error| match excess(&error) {
        Some(excess) => excess.clone().into(),
        None => failed(error),
    };
    let mut text = Within::new(source, MOST_TEXT, "a graph");
    let mut start = Vec::new();
    (&mut text).take(HELD_TEXT).read_to_end(&mut start).map_err(refused)?;
    if (start.len() as u64) < HELD_TEXT {
        return held(&start);
    }
    let text = BoundedText::new(Cursor::new(start).chain(text), ESCAPED * LONGEST_NAME);
    match serde_json::from_reader(BufReader::with_capacity(1 << 16, text)) {
        Ok(Object::<Document>(document)) => document.graph(),
        Err(error) if error.is_io() => Err(refused(error.into())),
        Err(error) => Err(error.into()),
    }
}

/// Reads a text that is in memory.
fn held(text: &[u8]) -> Result<Graph, ReadError> {
    match serde_json::from_slice(text) {
        Ok(Object::<Document>(document)) => document.graph(),
        // A file of another format need not have the structure of this one.
        Err(error) => Err(match format_of::<MOST_OF_AN_EVENT>(text) {
            Some(format) if format != FORMAT => ReadError::version(&format),
            _ => error.into(),
        }),
    }
}

coded!(Content: GraphError);

impl Coded for ReadError {
    fn exit(&self) -> Exit {
        match self {
            ReadError::Io(error) => error.exit(),
            _ => Exit::Content,
        }
    }
}
