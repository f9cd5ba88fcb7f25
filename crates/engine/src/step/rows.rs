//! Rows of a data file, read when they are needed. Invariant: no more of the file is in memory than
//! the row that is being read; a table's index, eight bytes a row, is made when it is opened, and
//! every row was read once then and found valid.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::step::spec::EveryRow;
use crate::step::unsuitable::DataError;

/// Bytes that are read at once.
const BLOCK: usize = 64 << 10;
/// Most bytes of a table's cell.
const LONGEST_CELL: usize = 64;

/// Where a batch is put: a rank of a pipeline may read half of it, or none.
#[derive(Debug, Default)]
pub struct Halves<'a> {
    /// Its rows.
    pub rows: usize,
    /// Where the inputs go.
    pub input: Option<&'a mut [u8]>,
    /// Where the targets go.
    pub target: Option<&'a mut [u8]>,
}

/// A file that is read at arbitrary positions.
#[derive(Debug)]
pub(super) struct DataFile {
    pub path: PathBuf,
    file: File,
    /// Its length when it was opened.
    pub length: u64,
}

impl DataFile {
    pub fn open(path: PathBuf) -> Result<DataFile, DataError> {
        let open = || {
            // Opening a pipe would wait for a writer.
            let known = path.metadata()?;
            if !known.is_file() {
                let what = "data are read as they are needed, so they have to be in a file";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            Ok((File::open(&path)?, known.len()))
        };
        match open() {
            Ok((file, length)) => Ok(DataFile { path, file, length }),
            Err(error) => Err(DataError::Read { path, error }),
        }
    }

    /// Refuses a file with a different SHA-256.
    pub fn expect(&self, expected: &str) -> Result<(), DataError> {
        let (mut digest, mut block) = (Sha256::new(), vec![0; BLOCK]);
        let mut file = self.from(0)?;
        loop {
            match file.read(&mut block).map_err(|error| self.unreadable(error))? {
                0 => break,
                read => digest.update(&block[..read]),
            }
        }
        let found: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found == expected {
            return Ok(());
        }
        let (path, expected) = (self.path.clone(), expected.to_string());
        Err(DataError::OtherFile { path, found, expected })
    }

    /// Fills `out` from the bytes at `at`.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), DataError> {
        self.from(at)?.read_exact(out).map_err(|error| self.unreadable(error))
    }

    pub fn content(&self, what: String) -> DataError {
        DataError::Content { path: self.path.clone(), what }
    }

    fn from(&self, at: u64) -> Result<&File, DataError> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(at)).map_err(|error| self.unreadable(error))?;
        Ok(file)
    }

    fn unreadable(&self, error: io::Error) -> DataError {
        DataError::Read { path: self.path.clone(), error }
    }
}

/// Windows of bytes.
#[derive(Debug)]
pub(super) struct Windows {
    pub file: DataFile,
    pub window: usize,
    /// Bytes of the training split, the first ones.
    pub training: u64,
}

impl Windows {
    pub fn new(file: DataFile, window: usize, share: f64) -> Result<Windows, DataError> {
        if !(0.0..1.0).contains(&share) {
            let what = format!("a validation share of {share} is not between 0 and 1");
            return Err(file.content(what));
        }
        if window == 0 {
            return Err(file.content("windows of no bytes hold nothing".to_string()));
        }
        let training = file.length - (file.length as f64 * share) as u64;
        let wide = window as u64;
        if training.saturating_sub(2) < wide || file.length - training <= wide {
            return Err(file.content(format!(
                "{} bytes are too few for windows of {window} in both splits",
                file.length
            )));
        }
        Ok(Windows { file, window, training })
    }

    /// Number of windows that begin in the training split and have a successor there.
    pub fn starts(&self) -> u64 {
        self.training - self.window as u64
    }

    /// Number of whole windows of the validation split.
    pub fn validation(&self) -> usize {
        ((self.file.length - self.training - 1) / self.window as u64) as usize
    }

    /// Writes a window, and the window one byte later, as 64-bit integers into row `row` of a
    /// batch.
    pub fn write(
        &self,
        start: u64,
        row: usize,
        Halves { input, target, .. }: &mut Halves<'_>,
    ) -> Result<(), DataError> {
        let window = self.window;
        for (shift, out) in [(0, input), (1, target)] {
            let Some(out) = out else { continue };
            let out = &mut out[row * window * 8..(row + 1) * window * 8];
            // Read into the end of the row and spread from its beginning: the eight bytes of an
            // element end no later than the byte that it is made from.
            self.file.read(start + shift, &mut out[window * 7..])?;
            for index in 0..window {
                let wide = i64::from(out[window * 7 + index]).to_ne_bytes();
                out[index * 8..(index + 1) * 8].copy_from_slice(&wide);
            }
        }
        Ok(())
    }
}

/// A table of numbers with a class in its last column.
#[derive(Debug)]
pub(super) struct Table {
    pub file: DataFile,
    pub columns: usize,
    scale: f32,
    split: EveryRow,
    /// Where each row begins.
    rows: Vec<u64>,
    /// The row that is being read.
    line: Vec<u8>,
}

impl Table {
    pub fn new(
        file: DataFile,
        columns: usize,
        scale: f32,
        split: EveryRow,
    ) -> Result<Table, DataError> {
        let split = EveryRow { every: split.every.max(1), ..split };
        let longest = columns.saturating_add(1).saturating_mul(LONGEST_CELL);
        let mut table = Table { file, columns, scale, split, rows: Vec::new(), line: Vec::new() };
        let (mut line, mut longest_row) = (Vec::new(), 0);
        let (mut at, mut number) = (0, 0);
        let mut reader = BufReader::with_capacity(BLOCK, table.file.from(0)?);
        let mut rows = Vec::new();
        loop {
            line.clear();
            let mut limited = (&mut reader).take(longest as u64 + 1);
            let read = limited
                .read_until(b'\n', &mut line)
                .map_err(|error| table.file.unreadable(error))?;
            if read == 0 {
                break;
            }
            number += 1;
            let wrong = |what: String| DataError::Line {
                path: table.file.path.clone(),
                line: number,
                what,
            };
            if read > longest {
                return Err(wrong(format!("more than {LONGEST_CELL} characters a column")));
            }
            // The first line holds the columns' names.
            if number > 1 && !line.trim_ascii().is_empty() {
                table.cells(&line, &mut |_, _| ()).map_err(|what| match what {
                    Some(what) => wrong(what),
                    None => table.file.content("not a text file".to_string()),
                })?;
                rows.push(at);
                longest_row = longest_row.max(read);
            }
            at += read as u64;
        }
        drop(reader);
        rows.shrink_to_fit();
        table.rows = rows;
        table.line = vec![0; longest_row];
        if table.training() == 0
            || table.validation() == 0
            || u32::try_from(table.rows.len()).is_err()
        {
            let what = format!("{} rows are too few for both splits", table.rows.len());
            return Err(table.file.content(what));
        }
        Ok(table)
    }

    /// Number of rows of the validation split.
    pub fn validation(&self) -> usize {
        self.rows.len().saturating_sub(self.split.remainder).div_ceil(self.split.every)
            * usize::from(self.split.remainder < self.split.every)
    }

    /// Number of rows of the training split.
    pub fn training(&self) -> usize {
        self.rows.len() - self.validation()
    }

    /// The row that is number `index` of the validation split.
    pub fn validation_row(&self, index: usize) -> usize {
        self.split.remainder + index * self.split.every
    }

    /// The row that is number `index` of the training split.
    pub fn training_row(&self, index: usize) -> usize {
        if self.split.remainder >= self.split.every {
            return index;
        }
        let (block, within) = (index / (self.split.every - 1), index % (self.split.every - 1));
        block * self.split.every + within + usize::from(within >= self.split.remainder)
    }

    /// Bytes that it holds in memory.
    pub fn memory(&self) -> usize {
        self.rows.capacity() * size_of::<u64>() + self.line.capacity()
    }

    /// Writes row `from` of the file into row `row` of a batch.
    pub fn write(
        &mut self,
        from: usize,
        row: usize,
        Halves { input, target, .. }: &mut Halves<'_>,
    ) -> Result<(), DataError> {
        let start = self.rows[from];
        let length = (self.file.length - start).min(self.line.len() as u64) as usize;
        let mut line = std::mem::take(&mut self.line);
        let read = self.file.read(start, &mut line[..length]);
        let whole = line[..length].split(|&byte| byte == b'\n').next().unwrap_or_default();
        let scale = self.scale;
        let width = self.columns * 4;
        let mut features = input.as_mut().map(|all| &mut all[row * width..(row + 1) * width]);
        let mut class = target.as_mut().map(|all| &mut all[row * 8..(row + 1) * 8]);
        let parsed = read.and_then(|()| {
            self.cells(whole, &mut |column, cell| match cell {
                Cell::Feature(feature) => {
                    if let Some(features) = &mut features {
                        let place = &mut features[column * 4..(column + 1) * 4];
                        place.copy_from_slice(&(feature * scale).to_ne_bytes());
                    }
                }
                Cell::Class(index) => {
                    if let Some(class) = &mut class {
                        class.copy_from_slice(&index.to_ne_bytes());
                    }
                }
            })
            .map_err(|_| self.file.content("it was changed while it was used".to_string()))
        });
        self.line = line;
        parsed
    }

    /// Reads a row cell by cell; returns what is wrong with it, or nothing if it is not text.
    fn cells(&self, line: &[u8], each: &mut dyn FnMut(usize, Cell)) -> Result<(), Option<String>> {
        let line = std::str::from_utf8(line).map_err(|_| None)?;
        let found = line.split(',').count();
        if found != self.columns + 1 {
            let columns = self.columns;
            return Err(Some(format!("{found} columns, expected {columns} features and a class")));
        }
        for (column, cell) in line.split(',').map(str::trim).enumerate() {
            let value = if column < self.columns {
                let feature = cell.parse().ok().filter(|feature: &f32| feature.is_finite());
                feature.map(Cell::Feature).ok_or_else(|| format!("`{cell}` is not a number"))
            } else {
                let class = cell.parse().ok().filter(|&class: &i64| class >= 0);
                class.map(Cell::Class).ok_or_else(|| format!("`{cell}` is not a class"))
            };
            each(column, value.map_err(Some)?);
        }
        Ok(())
    }
}

/// The content of a cell.
#[derive(Clone, Copy)]
enum Cell {
    Feature(f32),
    Class(i64),
}
