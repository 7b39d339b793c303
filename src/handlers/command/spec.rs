//! What a command handler is made of, as data.

use std::path::PathBuf;
use std::time::Duration;

use super::ExitTable;

/// A command and the terms it runs on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CommandSpec {
    /// The program and its arguments, passed on as they are. A program without a slash is looked
    /// for in the command's `PATH`; a relative path is taken from [`cwd`](Self::cwd). It is looked
    /// for once, when the handler is made.
    pub argv: Vec<String>,
    /// Names of variables passed on from our own environment; everything else is cleared. `PATH`
    /// has a safe value of its own unless it is named here.
    pub env: Vec<String>,
    /// Names of headers that become `DELIVERY_HEADER_*` variables, compared byte by byte.
    pub headers: Vec<String>,
    /// The directory it runs in; none: ours. Naming one makes starting it slower (a full fork).
    pub cwd: Option<PathBuf>,
    /// How long it may take to end after SIGTERM, before SIGKILL.
    pub abort_grace: Duration,
    /// The longest result, in bytes. A command that writes more is killed and has failed.
    pub stdout_limit: usize,
    /// How much of the end of standard error becomes the error's text, in bytes.
    pub stderr_tail: usize,
    /// What its exit codes say.
    pub exit_table: ExitTable,
}

impl CommandSpec {
    /// The default of [`abort_grace`](Self::abort_grace).
    pub const ABORT_GRACE: Duration = Duration::from_secs(2);
    /// The default of [`stdout_limit`](Self::stdout_limit).
    pub const STDOUT_LIMIT: usize = 1024 * 1024;
    /// The default of [`stderr_tail`](Self::stderr_tail).
    pub const STDERR_TAIL: usize = 8 * 1024;

    /// Names a command; everything else is at its default.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            headers: Vec::new(),
            cwd: None,
            abort_grace: Self::ABORT_GRACE,
            stdout_limit: Self::STDOUT_LIMIT,
            stderr_tail: Self::STDERR_TAIL,
            exit_table: ExitTable::default(),
        }
    }

    /// Passes variables of our own environment on.
    #[must_use]
    pub fn with_env(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.env = names.into_iter().map(Into::into).collect();
        self
    }

    /// Passes headers on as variables.
    #[must_use]
    pub fn with_headers(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.headers = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the directory it runs in.
    #[must_use]
    pub fn with_cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Sets the time between SIGTERM and SIGKILL.
    #[must_use]
    pub fn with_abort_grace(mut self, abort_grace: Duration) -> Self {
        self.abort_grace = abort_grace;
        self
    }

    /// Sets the longest result, in bytes.
    #[must_use]
    pub fn with_stdout_limit(mut self, stdout_limit: usize) -> Self {
        self.stdout_limit = stdout_limit;
        self
    }

    /// Sets how much of standard error is kept, in bytes.
    #[must_use]
    pub fn with_stderr_tail(mut self, stderr_tail: usize) -> Self {
        self.stderr_tail = stderr_tail;
        self
    }

    /// Sets what its exit codes say.
    #[must_use]
    pub fn with_exit_table(mut self, exit_table: ExitTable) -> Self {
        self.exit_table = exit_table;
        self
    }
}
