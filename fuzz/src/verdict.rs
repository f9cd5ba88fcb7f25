//! The verdict on a case. Invariant: everything that must not happen is a variant that
//! [`Verdict::is_finding`] names; a verdict survives being written as a line and read again.

use std::fmt;

/// The verdict on one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A clear refusal, with the part that refused.
    Refused(String),
    /// Read, and in accordance with the laws of its format.
    Accepted,
    /// Trained at both budgets, or executed as planned and as captured, with the same bits.
    Executed,
    /// More than the target takes on, for example too large to be executed here.
    Skipped(String),
    /// A law was broken.
    Wrong(String),
    /// A panic, and where.
    Panic(String),
    /// The process ended by a signal or by itself.
    Died(String),
    /// No end within the limit.
    Hang,
    /// More memory than the input justifies.
    Memory(String),
}

impl Verdict {
    /// Whether it must not happen.
    pub fn is_finding(&self) -> bool {
        match self {
            Verdict::Refused(_) | Verdict::Accepted | Verdict::Executed | Verdict::Skipped(_) => {
                false
            }
            Verdict::Wrong(_)
            | Verdict::Panic(_)
            | Verdict::Died(_)
            | Verdict::Hang
            | Verdict::Memory(_) => true,
        }
    }

    /// The word under which it is counted.
    pub fn kind(&self) -> &'static str {
        match self {
            Verdict::Refused(_) => "refused",
            Verdict::Accepted => "accepted",
            Verdict::Executed => "executed",
            Verdict::Skipped(_) => "skipped",
            Verdict::Wrong(_) => "wrong",
            Verdict::Panic(_) => "panic",
            Verdict::Died(_) => "died",
            Verdict::Hang => "hang",
            Verdict::Memory(_) => "memory",
        }
    }

    /// The text that follows the kind.
    pub fn detail(&self) -> &str {
        match self {
            Verdict::Refused(what)
            | Verdict::Skipped(what)
            | Verdict::Wrong(what)
            | Verdict::Panic(what)
            | Verdict::Died(what)
            | Verdict::Memory(what) => what,
            Verdict::Accepted | Verdict::Executed | Verdict::Hang => "",
        }
    }

    /// Kind and detail without numbers and names: the same for findings of one cause.
    pub fn cause(&self) -> String {
        let is_place = matches!(self, Verdict::Panic(_));
        let mut cause = format!("{}: ", self.kind());
        let mut is_quoted = false;
        for letter in self.detail().chars() {
            match letter {
                '`' => is_quoted = !is_quoted,
                _ if is_quoted && !is_place => {}
                '0'..='9' if !is_place => {}
                _ => cause.push(letter),
            }
        }
        cause
    }

    /// Reads what [`fmt::Display`] wrote.
    pub fn parse(line: &str) -> Option<Verdict> {
        let (kind, detail) = line.split_once(' ').unwrap_or((line, ""));
        let detail = detail.to_string();
        Some(match kind {
            "refused" => Verdict::Refused(detail),
            "accepted" => Verdict::Accepted,
            "executed" => Verdict::Executed,
            "skipped" => Verdict::Skipped(detail),
            "wrong" => Verdict::Wrong(detail),
            "panic" => Verdict::Panic(detail),
            "died" => Verdict::Died(detail),
            "hang" => Verdict::Hang,
            "memory" => Verdict::Memory(detail),
            _ => return None,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail: String = (self.detail().chars())
            .map(|letter| if letter.is_control() { ' ' } else { letter })
            .take(400)
            .collect();
        write!(f, "{} {detail}", self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_as_they_were_written() {
        for verdict in [
            Verdict::Refused("the reader".to_string()),
            Verdict::Accepted,
            Verdict::Executed,
            Verdict::Skipped("large".to_string()),
            Verdict::Wrong("losses differ".to_string()),
            Verdict::Panic("at a.rs:1".to_string()),
            Verdict::Died("signal 11".to_string()),
            Verdict::Hang,
            Verdict::Memory("3 GiB".to_string()),
        ] {
            assert_eq!(Verdict::parse(&verdict.to_string()), Some(verdict));
        }
        assert_eq!(Verdict::parse("else"), None);
    }

    #[test]
    fn findings_of_one_cause_are_told_from_others_by_words_alone() {
        let wrong = |text: &str| Verdict::Wrong(text.to_string()).cause();
        assert_eq!(wrong("loss 5.1 of `a`"), wrong("loss 17.3 of `b`"));
        assert_ne!(wrong("loss differs"), wrong("weights differ"));
        let panic = |text: &str| Verdict::Panic(text.to_string()).cause();
        assert_ne!(panic("at a.rs:1"), panic("at a.rs:2"));
    }
}
