//! Safetensors files, read and written tensor by tensor. Invariant: no tensor is buffered in
//! between, so that saving and loading take no memory besides the slab; the same tensors with the
//! same metadata give the same bytes; and a changed bit in what was written here is never read
//! unnoticed.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};
use serde_json::json;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tightfit::graph::limits::LONGEST_HEADER;

/// Bytes of the header's size, which comes first.
const PREFIX: u64 = 8;
/// Bytes that are hashed at once.
const BLOCK: usize = 64 << 10;
/// The metadata's checksum, under this key; that of a tensor under this key, a dot and its name.
pub(crate) const CHECKSUM: &str = "sha256";

/// Why a file is not read.
#[derive(Debug, Error)]
pub(crate) enum StreamError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("not a whole safetensors file: {0}")]
    Format(String),
    #[error(
        "{0} is damaged: its bytes are not those that were saved; take another copy of the file"
    )]
    Damaged(String),
}

/// A file whose header was read.
pub(crate) struct Reader {
    file: File,
    /// Position of the first byte after the header.
    data: u64,
    header: Metadata,
    /// Whether its tensors have checksums.
    is_sealed: bool,
}

impl Reader {
    /// Opens a file, and refuses one that is not as long as its header says.
    pub fn open(path: &Path) -> Result<Reader, StreamError> {
        let known = std::fs::metadata(path)?;
        if !known.is_file() && !known.is_dir() {
            let what = "it is a device or a pipe; weights are read from a file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
        }
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut prefix = [0; PREFIX as usize];
        file.read_exact(&mut prefix).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => StreamError::Format(format!(
                "it has {length} bytes, less than the size of a header"
            )),
            _ => error.into(),
        })?;
        let size = u64::from_le_bytes(prefix);
        if size > LONGEST_HEADER.min(length.saturating_sub(PREFIX)) {
            return Err(StreamError::Format(format!(
                "its header is longer than the file, which has {length} bytes, or than any that is \
                 read"
            )));
        }
        let mut text = vec![0; size as usize];
        file.read_exact(&mut text)?;
        let header: Metadata = serde_json::from_slice(&text)
            .map_err(|error| StreamError::Format(format!("its header is damaged: {error}")))?;
        let whole = PREFIX + size + header.data_len() as u64;
        if whole != length {
            return Err(StreamError::Format(format!(
                "it should have {whole} bytes, but has {length}"
            )));
        }
        let is_sealed = is_sealed(header.metadata().iter().flatten())?;
        Ok(Reader { file, data: PREFIX + size, header, is_sealed })
    }

    /// The metadata of the file.
    pub fn metadata(&self) -> HashMap<String, String> {
        self.header.metadata().clone().unwrap_or_default()
    }

    /// Type, shape and place of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    /// Reads a part of the tensor called `name`, which has `whole` bytes, from its byte `part` on
    /// into `out`. [`Reader::verify`] checks whether it is what was saved.
    pub fn read_part(
        &mut self,
        name: &str,
        whole: u64,
        part: u64,
        out: &mut [u8],
    ) -> Result<(), StreamError> {
        let (from, to) = self
            .header
            .info(name)
            .ok_or(SafeTensorError::TensorNotFound(name.to_string()))?
            .data_offsets;
        if (to - from) as u64 != whole {
            return Err(StreamError::Format(format!(
                "`{name}` has {} bytes, {whole} are needed",
                to - from,
            )));
        }
        self.file.seek(SeekFrom::Start(self.data + from as u64 + part))?;
        Ok(self.file.read_exact(out)?)
    }

    /// Compares a tensor with its checksum, block by block, and keeps nothing of it.
    pub fn verify(&mut self, name: &str) -> Result<(), StreamError> {
        if !self.is_sealed {
            return Ok(());
        }
        let info = self.header.info(name);
        let info = info.ok_or(SafeTensorError::TensorNotFound(name.to_string()))?;
        let (from, to) = info.data_offsets;
        self.file.seek(SeekFrom::Start(self.data + from as u64))?;
        let mut digest = Sha256::new();
        let mut block = vec![0; BLOCK];
        let mut left = to - from;
        while left > 0 {
            let part = &mut block[..left.min(BLOCK)];
            self.file.read_exact(part)?;
            digest.update(&*part);
            left -= part.len();
        }
        let metadata = self.header.metadata().as_ref();
        let expected = metadata.and_then(|metadata| metadata.get(&key(name)));
        match expected == Some(&hexadecimal(&digest.finalize())) {
            true => Ok(()),
            false => Err(StreamError::Damaged(format!("`{name}`"))),
        }
    }
}

/// Whether metadata have checksums; if so, that of the metadata themselves has to be right.
fn is_sealed<'a>(
    metadata: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<bool, StreamError> {
    let mut rest: BTreeMap<&str, &str> = metadata.map(|(k, v)| (k.as_str(), v.as_str())).collect();
    if !rest.keys().any(|key| key.starts_with(CHECKSUM)) {
        return Ok(false);
    }
    let expected = rest.remove(CHECKSUM);
    match expected == Some(checksum(json!(rest).to_string().as_bytes()).as_str()) {
        true => Ok(true),
        false => Err(StreamError::Damaged("its header".to_string())),
    }
}

/// SHA-256 of what is streamed, in hexadecimal digits.
fn checksum_of(data: Data<'_>) -> io::Result<String> {
    let mut digest = Sha256::new();
    data(&mut |part| {
        digest.update(part);
        Ok(())
    })?;
    Ok(hexadecimal(&digest.finalize()))
}

/// SHA-256 in hexadecimal digits.
fn checksum(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key of a tensor's checksum in the metadata.
fn key(name: &str) -> String {
    format!("{CHECKSUM}.{name}")
}

impl From<SafeTensorError> for StreamError {
    fn from(error: SafeTensorError) -> StreamError {
        StreamError::Format(error.to_string())
    }
}

/// Passes on bytes, in order and in parts, each time that it is called.
pub(crate) type Data<'a> =
    &'a (dyn Fn(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> + 'a);

/// A tensor to be written.
pub(crate) struct Piece<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    pub shape: &'a [usize],
    pub data: Data<'a>,
}

/// Writes a whole file with its checksums: types of large elements first, so that every element is
/// aligned, then by name.
pub(crate) fn write(
    file: &mut (impl Write + ?Sized),
    pieces: &[Piece],
    metadata: &BTreeMap<&str, String>,
) -> io::Result<()> {
    let mut order: Vec<&Piece> = pieces.iter().collect();
    order
        .sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then_with(|| a.name.cmp(b.name)));
    // A map of serde_json is sorted, one of the standard library is not.
    let mut header = serde_json::Map::new();
    let mut metadata: BTreeMap<String, String> =
        metadata.iter().map(|(&key, value)| (key.to_string(), value.clone())).collect();
    for piece in &order {
        metadata.insert(key(piece.name), checksum_of(piece.data)?);
    }
    let seal = checksum(json!(metadata).to_string().as_bytes());
    metadata.insert(CHECKSUM.to_string(), seal);
    header.insert("__metadata__".to_string(), json!(metadata));
    let mut end = 0;
    for piece in &order {
        let from = end;
        end += piece.shape.iter().product::<usize>() * piece.dtype.bitsize() / 8;
        header.insert(
            piece.name.to_string(),
            json!({ "dtype": piece.dtype, "shape": piece.shape, "data_offsets": [from, end] }),
        );
    }
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(PREFIX as usize), b' ');
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(&text)?;
    order.iter().try_for_each(|piece| (piece.data)(&mut |part| file.write_all(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Vec<u8> {
        let [flag, z, count]: [Data<'_>; 3] = [
            &|sink| sink(&[1, 0, 1]),
            &|sink| [&[1, 2, 3][..], &[4, 5, 6, 7, 8]].into_iter().try_for_each(sink),
            &|sink| sink(&[7, 0, 0, 0, 0, 0, 0, 0]),
        ];
        let pieces = [
            Piece { name: "flag", dtype: Dtype::BOOL, shape: &[3], data: flag },
            Piece { name: "z", dtype: Dtype::F32, shape: &[1, 2], data: z },
            Piece { name: "count", dtype: Dtype::I64, shape: &[], data: count },
        ];
        let mut bytes = Vec::new();
        write(
            &mut bytes,
            &pieces,
            &BTreeMap::from([("seed", "1".to_string()), ("format", "x".to_string())]),
        )
        .unwrap();
        bytes
    }

    fn read(reader: &mut Reader, name: &str, out: &mut [u8]) -> Result<(), StreamError> {
        reader.verify(name)?;
        reader.read_part(name, out.len() as u64, 0, out)
    }

    fn opened(bytes: &[u8]) -> Result<Reader, StreamError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        Reader::open(file.path())
    }

    #[test]
    fn others_read_what_is_written() {
        let bytes = written();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.tensor("z").unwrap().data(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(tensors.tensor("z").unwrap().shape(), [1, 2]);
        assert_eq!(tensors.tensor("count").unwrap().shape(), [0; 0]);
        assert_eq!(tensors.tensor("flag").unwrap().data(), [1, 0, 1]);
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["seed"], "1");
    }

    #[test]
    fn what_is_written_is_read() {
        let mut reader = opened(&written()).unwrap();
        let mut out = [0; 8];
        read(&mut reader, "z", &mut out).unwrap();
        let mut part = [0; 3];
        reader.read_part("z", 8, 4, &mut part).unwrap();
        assert_eq!(part, [5, 6, 7]);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(reader.metadata()["format"], "x");
        assert!(reader.info("y").is_none());
        assert!(read(&mut reader, "z", &mut out[..4]).is_err());
    }

    #[test]
    fn what_others_write_is_read() {
        let view =
            safetensors::tensor::TensorView::new(Dtype::F32, vec![2], &[1, 2, 3, 4, 5, 6, 7, 8])
                .unwrap();
        let mut out = [0; 8];
        let written = safetensors::serialize([("w", view)], None).unwrap();
        read(&mut opened(&written).unwrap(), "w", &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        // Types and shapes have no checksum: the reader knows what they have to be.
        let read_all = |bytes: &[u8]| -> Result<_, StreamError> {
            let mut reader = opened(bytes)?;
            let mut tensors = [[0; 8]; 3];
            for (out, (name, size)) in tensors.iter_mut().zip([("z", 8), ("count", 8), ("flag", 3)])
            {
                read(&mut reader, name, &mut out[..size])?;
            }
            Ok((reader.metadata(), tensors))
        };
        let bytes = written();
        let right = read_all(&bytes).unwrap();
        let mut unread = 0;
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            match read_all(&changed) {
                Err(StreamError::Io(error)) => panic!("bit {bit}: {error}"),
                Err(StreamError::Format(_) | StreamError::Damaged(_)) => unread += 1,
                Ok(read) => assert_eq!(read, right, "bit {bit}"),
            }
        }
        assert!(unread > 8 * (3 + 8 + 8), "{unread}");
    }

    #[test]
    fn a_checksum_that_is_taken_away_is_missed() {
        let text = |from: &str, to: &str| {
            let bytes = written();
            let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
            [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
        };
        for (from, to) in [("\"sha256\"", "\"sha255\""), ("\"sha256.z\"", "\"sha256.y\"")] {
            let error = opened(&text(from, to)).err().unwrap();
            assert!(matches!(error, StreamError::Damaged(_)), "{error}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_device_is_no_file_of_weights() {
        let error = Reader::open(Path::new("/dev/zero")).err().unwrap();
        assert!(matches!(error, StreamError::Io(_)), "{error}");
    }

    #[test]
    fn every_cut_is_noticed() {
        let bytes = written();
        for length in 0..bytes.len() {
            assert!(
                matches!(opened(&bytes[..length]), Err(StreamError::Format(_))),
                "{length} bytes"
            );
        }
        assert!(opened(&[&bytes[..], b"x"].concat()).is_err());
    }
}
