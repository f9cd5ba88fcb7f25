//! How a step is divided, as it is written on the command line. Invariant: what is displayed is
//! read as the same parts.

use std::fmt;
use std::str::FromStr;

use crate::split::NotParts;

/// The most chunks that can be asked for.
const MOST: u64 = 1 << 10;
/// What comes before the number of chunks of layers.
const LAYERS: char = '+';
/// What says that sums are totals.
const TOTALS: &str = "totals";

/// How sums over the rows are made, such as the products that make gradients of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// At once, after the chunks: what they read exists for all rows.
    AtOnce,
    /// As a total to which each chunk adds its term.
    Totals,
}

/// How a step is divided. Displays as it is written on the command line: `8`, `8:totals`, `8+4`,
/// `1+4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The number of chunks of the loss; one: all at once.
    pub chunks: u64,
    /// How sums over the rows are made.
    pub sums: Sums,
    /// The number of chunks of what layers make and do not keep, all sums at once; one: no chunks.
    pub layers: u64,
}

impl Parts {
    /// The step as it is.
    pub const WHOLE: Parts = Parts::of_loss(1);

    /// The loss in chunks, with sums at once.
    pub const fn of_loss(chunks: u64) -> Parts {
        Parts { chunks, sums: Sums::AtOnce, layers: 1 }
    }

    /// The loss in chunks, with totals.
    pub const fn with_totals(chunks: u64) -> Parts {
        Parts { chunks, sums: Sums::Totals, layers: 1 }
    }

    /// Only layers in chunks.
    pub const fn of_layers(layers: u64) -> Parts {
        Parts::WHOLE.and_layers(layers)
    }

    /// The same, and layers in chunks.
    pub const fn and_layers(self, layers: u64) -> Parts {
        Parts { layers, ..self }
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.chunks, self.sums) {
            (1, _) if self.layers == 1 => return formatter.write_str("off"),
            (1, _) => formatter.write_str("1"),
            (chunks, Sums::AtOnce) => write!(formatter, "{chunks}"),
            (chunks, Sums::Totals) => write!(formatter, "{chunks}:{TOTALS}"),
        }?;
        if self.layers > 1 { write!(formatter, "{LAYERS}{}", self.layers) } else { Ok(()) }
    }
}

impl FromStr for Parts {
    type Err = NotParts;

    fn from_str(text: &str) -> Result<Parts, NotParts> {
        if text == "off" {
            return Ok(Parts::WHOLE);
        }
        let number = |text: &str| text.parse().ok().filter(|chunks| (2..=MOST).contains(chunks));
        let (text, layers) = match text.split_once(LAYERS) {
            Some(("1", layers)) => return number(layers).map(Parts::of_layers).ok_or(NotParts),
            Some((text, layers)) => (text, number(layers).ok_or(NotParts)?),
            None => (text, 1),
        };
        let (chunks, sums) = match text.split_once(':') {
            Some((chunks, TOTALS)) => (chunks, Sums::Totals),
            Some(_) => return Err(NotParts),
            None => (text, Sums::AtOnce),
        };
        Ok(Parts { chunks: number(chunks).ok_or(NotParts)?, sums, layers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_as_they_are_read() {
        for text in ["off", "2", "8:totals", "1024", "16+4", "16:totals+2", "1+4"] {
            assert_eq!(text.parse::<Parts>().unwrap().to_string(), text);
        }
        let others = ["", "1", "0", "-2", "8:", "8:sums", "off:totals", "1025"];
        for text in
            others.into_iter().chain(["8+1", "8+", "+8", "off+4", "1:totals+4", "1+1", "8+4+2"])
        {
            assert_eq!(text.parse::<Parts>(), Err(NotParts), "{text}");
        }
    }
}
