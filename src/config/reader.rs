//! Reads a TOML tree key by key and collects every problem on the way, instead of ending at the
//! first. It knows no key by name; [`raw`](super::raw) says which there are.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Position, Problem, Severity, Trouble, nearest};
use super::value::{Leaf, Wrong, shape};

/// Environment variables that override keys, by name.
pub(super) type Environment = BTreeMap<String, String>;

/// Where each key that was given stands, and which keys there are.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins {
    positions: BTreeMap<String, Position>,
    variables: BTreeMap<String, String>,
    /// Every key that was asked for, as `section.key` without numbers.
    pub(super) known: BTreeSet<String>,
}

impl Origins {
    /// Tells whether a key was given, in the file or by the environment.
    pub(super) fn is_given(&self, key: &str) -> bool {
        self.positions.contains_key(key) || self.variables.contains_key(key)
    }

    /// Makes a problem of a key, or of the nearest table above it that was given.
    pub(super) fn problem(&self, severity: Severity, key: &str, trouble: Trouble) -> Problem {
        let mut above = key;
        let position = loop {
            if let Some(position) = self.positions.get(above) {
                break Some(*position);
            }
            match above.rfind(['.', '[']) {
                Some(at) => above = &above[..at],
                None => break None,
            }
        };
        Problem {
            severity,
            key: key.to_owned(),
            position,
            variable: self.variables.get(key).cloned(),
            trouble,
        }
    }
}

/// Reads one file.
pub(super) struct Reader<'t> {
    text: &'t str,
    environment: &'t Environment,
    used_variables: BTreeSet<String>,
    unknown: Vec<UnknownKey>,
    problems: Vec<Problem>,
    origins: Origins,
}

struct UnknownKey {
    path: String,
    name: String,
    position: Position,
    known: Vec<&'static str>,
}

/// What a reader leaves behind.
pub(super) struct Read {
    pub(super) problems: Vec<Problem>,
    pub(super) origins: Origins,
}

/// The name of a variable starts with this, and has a double underscore for each dot.
pub(super) const VARIABLE_PREFIX: &str = "ACQUIT_";

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str, environment: &'t Environment) -> Self {
        Self {
            text,
            environment,
            used_variables: BTreeSet::new(),
            unknown: Vec::new(),
            problems: Vec::new(),
            origins: Origins::default(),
        }
    }

    /// Opens the top of the tree.
    pub(super) fn root<'r>(&'r mut self, table: &'t DeTable<'t>) -> Section<'r, 't> {
        Section {
            reader: self,
            table: Some(table),
            path: String::new(),
            shape: String::new(),
            variable: VARIABLE_PREFIX.to_owned(),
            known: Vec::new(),
        }
    }

    /// Ends the reading: resolves the unknown keys, and the variables that nobody asked for.
    pub(super) fn finish(mut self) -> Read {
        for unknown in std::mem::take(&mut self.unknown) {
            let near = nearest(&unknown.name, unknown.known.iter().copied())
                .map(str::to_owned)
                .or_else(|| self.elsewhere(&unknown.name));
            self.problems.push(Problem {
                severity: Severity::Error,
                key: unknown.path,
                position: Some(unknown.position),
                variable: None,
                trouble: Trouble::UnknownKey {
                    nearest: near,
                    known: unknown.known.iter().map(|&key| key.to_owned()).collect(),
                },
            });
        }
        let environment = self.environment;
        for variable in environment.keys() {
            let is_ours = variable.starts_with(VARIABLE_PREFIX) && variable.contains("__");
            if is_ours && !self.used_variables.contains(variable) {
                self.problems.push(Problem {
                    severity: Severity::Error,
                    key: String::new(),
                    position: None,
                    variable: Some(variable.clone()),
                    trouble: Trouble::Unfit {
                        reason: "names no key of this configuration; a key is named by its \
                                 section and itself, such as ACQUIT_LIMITER__PERMITS"
                            .to_owned(),
                    },
                });
            }
        }
        self.problems.sort_by_key(Problem::order);
        Read {
            problems: self.problems,
            origins: self.origins,
        }
    }

    /// Finds a key of exactly this name in another section.
    fn elsewhere(&self, name: &str) -> Option<String> {
        let suffix = format!(".{name}");
        let mut found = self.origins.known.iter().filter(|k| k.ends_with(&suffix));
        found.next().cloned()
    }

    fn position(&self, offset: usize) -> Position {
        position(self.text, offset)
    }
}

/// Gives the line and column of a byte.
pub(super) fn position(text: &str, offset: usize) -> Position {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    Position {
        line: before.matches('\n').count() + 1,
        column: before[start..].chars().count() + 1,
    }
}

/// One table of the tree, given or not.
pub(super) struct Section<'r, 't> {
    reader: &'r mut Reader<'t>,
    table: Option<&'t DeTable<'t>>,
    /// The path as problems show it: `consumer[0].retry`.
    path: String,
    /// The path without numbers: `consumer.retry`.
    shape: String,
    /// What the names of its variables start with.
    variable: String,
    known: Vec<&'static str>,
}

impl<'t> Section<'_, 't> {
    /// Reads a key if it is given; else `into` keeps its default.
    pub(super) fn read<T: Leaf>(&mut self, key: &'static str, into: &mut T) {
        if let Some(value) = self.read_opt(key) {
            *into = value;
        }
    }

    /// Reads a key if it is given.
    pub(super) fn read_opt<T: Leaf>(&mut self, key: &'static str) -> Option<T> {
        self.read_given(key)?.ok()
    }

    /// Reads a key that must be given. `None` when it is not, or wrong: the problem is noted.
    pub(super) fn require<T: Leaf>(&mut self, key: &'static str) -> Option<T> {
        let read = self.read_given(key);
        if read.is_none() {
            let path = self.path_of(key);
            let expected = T::expected();
            self.problem(&path, Trouble::Missing { expected });
        }
        read?.ok()
    }

    /// Opens a table; one that is not given reads as empty.
    pub(super) fn section<'s>(&'s mut self, key: &'static str) -> Section<'s, 't> {
        let path = self.path_of(key);
        let table = match self.value(key).map(|value| value.get_ref()) {
            None => None,
            Some(DeValue::Table(table)) => Some(table),
            Some(other) => {
                self.wrong_shape(&path, other, "a table");
                None
            }
        };
        self.child(key, path, table)
    }

    /// Opens each table of an array of tables in turn.
    pub(super) fn sections(
        &mut self,
        key: &'static str,
        mut each: impl FnMut(&mut Section<'_, 't>),
    ) {
        let path = self.path_of(key);
        let Some(value) = self.value(key) else {
            return;
        };
        let DeValue::Array(array) = value.get_ref() else {
            let expected = format!("an array of tables, written [[{key}]]");
            return self.wrong_shape(&path, value.get_ref(), &expected);
        };
        for (number, item) in array.iter().enumerate() {
            let path = format!("{path}[{number}]");
            self.place(&path, item.span().start);
            match item.get_ref() {
                DeValue::Table(table) => {
                    let mut section = self.child(key, path, Some(table));
                    each(&mut section);
                    section.finish();
                }
                other => self.wrong_shape(&path, other, "a table"),
            }
        }
    }

    /// Names the variables of this section by `name`, from here on.
    pub(super) fn address(&mut self, name: &str) {
        self.variable.push_str(&variable_part(name));
        self.variable.push_str("__");
    }

    /// Tells which text stands at a key, if it is text.
    pub(super) fn peek_text(&self, key: &str) -> Option<&'t str> {
        self.table?.get(key)?.get_ref().as_str()
    }

    /// Tells whether a key holds a table.
    pub(super) fn is_table(&self, key: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        value.is_some_and(|value| value.get_ref().is_table())
    }

    /// Ends the section: what was given and never asked for is unknown.
    pub(super) fn finish(self) {
        let Some(table) = self.table else { return };
        for (key, _) in table.iter() {
            let name: &str = key.get_ref();
            if !self.known.contains(&name) {
                let unknown = UnknownKey {
                    path: self.path_of(name),
                    name: name.to_owned(),
                    position: self.reader.position(key.span().start),
                    known: self.known.clone(),
                };
                self.reader.unknown.push(unknown);
            }
        }
    }

    fn child<'s>(
        &'s mut self,
        key: &str,
        path: String,
        table: Option<&'t DeTable<'t>>,
    ) -> Section<'s, 't> {
        Section {
            shape: join(&self.shape, key),
            variable: format!("{}{}__", self.variable, variable_part(key)),
            reader: self.reader,
            table,
            path,
            known: Vec::new(),
        }
    }

    /// `None`: not given. `Some(Err)`: given and wrong, the problem is noted.
    fn read_given<T: Leaf>(&mut self, key: &'static str) -> Option<Result<T, ()>> {
        let path = self.path_of(key);
        let value = self.value(key).map(|value| value.get_ref());
        let environment = self.reader.environment;
        let variable = format!("{}{}", self.variable, variable_part(key));
        let read = match environment.get(&variable) {
            Some(text) => {
                self.reader.used_variables.insert(variable.clone());
                let variables = &mut self.reader.origins.variables;
                variables.insert(path.clone(), variable);
                read_variable(text)
            }
            None => T::read(value?),
        };
        Some(read.map_err(|wrong| {
            let trouble = match wrong {
                Wrong::Value { found, nearest } => Trouble::WrongValue {
                    found,
                    expected: T::expected(),
                    nearest,
                },
                Wrong::NotBuilt(what) => Trouble::NotBuilt { what },
                Wrong::Unfit(reason) => Trouble::Unfit { reason },
            };
            self.problem(&path, trouble);
        }))
    }

    /// Finds a key's value and notes that the key is known, and where it stands.
    fn value(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.known.push(key);
        let shape = join(&self.shape, key);
        self.reader.origins.known.insert(shape);
        let (name, value) = self.table?.get_key_value(key)?;
        let path = self.path_of(key);
        self.place(&path, name.span().start);
        Some(value)
    }

    fn place(&mut self, path: &str, offset: usize) {
        let position = self.reader.position(offset);
        let positions = &mut self.reader.origins.positions;
        positions.entry(path.to_owned()).or_insert(position);
    }

    fn wrong_shape(&mut self, path: &str, value: &DeValue<'_>, expected: &str) {
        let trouble = Trouble::WrongValue {
            found: shape(value),
            expected: expected.to_owned(),
            nearest: None,
        };
        self.problem(path, trouble);
    }

    fn problem(&mut self, path: &str, trouble: Trouble) {
        let problem = self.reader.origins.problem(Severity::Error, path, trouble);
        self.reader.problems.push(problem);
    }

    fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }
}

/// Reads a variable: as a TOML value if it is one of the right type, else as text.
fn read_variable<T: Leaf>(text: &str) -> Result<T, Wrong> {
    if let Ok(value) = DeValue::parse(text)
        && let Ok(read) = T::read(value.get_ref())
    {
        return Ok(read);
    }
    T::read(&DeValue::String(text.into()))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Writes a name as a part of a variable's name.
fn variable_part(name: &str) -> String {
    let upper = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    name.chars().map(upper).collect()
}
