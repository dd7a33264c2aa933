//! The output of commands: tables, JSON, YAML, or names.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::table::Layout;
use super::{json, window};
use crate::escape::escape_control_chars;

/// The flags of a command that prints tables.
#[derive(Clone, Debug, Args)]
pub(super) struct Output {
    /// Output format: `wide` adds columns, `name` prints only what other commands accept.
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum)]
    format: Option<Format>,
    /// The same as --output json. With --watch, one line for each change.
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Print tables without headers.
    #[arg(long)]
    no_headers: bool,
}

/// The flags of a command that prints a result.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ResultOutput {
    /// Print the result as a document.
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum)]
    format: Option<DocumentFormat>,
    /// The same as --output json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Wide,
    Json,
    Yaml,
    Name,
}

/// The format of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DocumentFormat {
    Json,
    Yaml,
}

/// What a command prints.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// Tables, for a window of the present width.
    Table(Layout),
    /// A document.
    Document(DocumentFormat),
    /// What other commands accept, one a line.
    Names,
}

impl Output {
    /// What is printed now.
    pub(super) fn form(&self) -> Form {
        let layout = |wide: bool| {
            let short_ids = !wide && window::is_there();
            Form::Table(Layout { wide, short_ids, headers: !self.no_headers, columns: window::size().1 })
        };
        match self.format {
            None if self.json => Form::Document(DocumentFormat::Json),
            None => layout(false),
            Some(Format::Wide) => layout(true),
            Some(Format::Json) => Form::Document(DocumentFormat::Json),
            Some(Format::Yaml) => Form::Document(DocumentFormat::Yaml),
            Some(Format::Name) => Form::Names,
        }
    }
}

impl ResultOutput {
    /// The document's format; `None` for words.
    pub(super) fn document(&self) -> Option<DocumentFormat> {
        self.format.or(self.json.then_some(DocumentFormat::Json))
    }

    /// Prints a result.
    pub(super) fn print<T: Serialize>(
        &self,
        done: &T,
        in_words: impl Fn(&T) -> String,
    ) -> anyhow::Result<()> {
        let text = match self.document() {
            Some(format) => format.text(done, false)?,
            None => in_words(done) + "\n",
        };
        Ok(io::stdout().write_all(text.as_bytes())?)
    }
}

impl DocumentFormat {
    /// A value, escaped for terminals. One of several is a line of JSON, or a document of YAML that begins with `---`.
    pub(super) fn text(self, value: &impl Serialize, is_one_of_several: bool) -> anyhow::Result<String> {
        match self {
            Self::Json => json(value, is_one_of_several),
            Self::Yaml => {
                let text = escape_control_chars(&serde_yaml::to_string(value)?);
                Ok(if is_one_of_several { format!("---\n{text}") } else { text })
            }
        }
    }
}

/// Names, one a line.
pub(super) fn lines(names: impl IntoIterator<Item = String>) -> String {
    names.into_iter().map(|name| name + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_json_or_yaml_and_a_watch_separates_them() {
        let value = serde_json::json!({"a": 1, "b": [null, "x\u{1b}\u{202e}: y\n"]});
        let json = DocumentFormat::Json.text(&value, true).unwrap();
        assert_eq!(json, "{\"a\":1,\"b\":[null,\"x\\u001b\\u202e: y\\n\"]}\n");
        let yaml = DocumentFormat::Yaml.text(&value, true).unwrap();
        let rest = yaml.strip_prefix("---\n").unwrap();
        let read: serde_json::Value = serde_yaml::from_str(rest).unwrap();
        assert_eq!(read, value, "{yaml}");
        assert!(!yaml.contains('\u{1b}') && !yaml.contains('\u{202e}'), "{yaml}");
    }
}
