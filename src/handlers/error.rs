//! Why a handler cannot be made: found before anything is consumed.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a handler cannot be made. Each text says what to write instead; they read well after
/// "handler: ".
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// There is no program to run.
    #[error("the command is empty; write the program and its arguments, such as [\"wc\", \"-w\"]")]
    EmptyCommand,
    /// No such program.
    #[error(
        "command {program:?} does not exist; looked in {looked_in}; write its full path, such as \
         [\"/usr/local/bin/{}\"], or install it", short_name(.program)
    )]
    NotFound {
        /// The first item of the command.
        program: String,
        /// Every place that was looked at.
        looked_in: String,
    },
    /// It exists and may not be run.
    #[error(
        "command {program:?} is {path}, which is not an executable file; make it one \
         (chmod +x {path}), or write the interpreter first, such as [\"/bin/sh\", \"{path}\"]"
    )]
    NotExecutable {
        /// The first item of the command.
        program: String,
        /// The file that was found.
        path: PathBuf,
    },
    /// A script names an interpreter that is not there.
    #[error(
        "command {program:?} is the script {path}, whose first line names the interpreter \
         {interpreter:?}, which does not exist or is not executable; correct that line, or write \
         the interpreter first, such as [\"/bin/sh\", \"{path}\"]"
    )]
    BadInterpreter {
        /// The first item of the command.
        program: String,
        /// The script.
        path: PathBuf,
        /// What its first line names.
        interpreter: String,
    },
    /// A shell would be handed message content as code.
    #[error(
        "command {program:?} passes {placeholder} to a shell; message content is never put into a \
         command line: the body is on standard input, metadata on descriptor 3 and in DELIVERY_* \
         variables; write a script that reads them, such as [\"/bin/sh\", \"/path/to/script\"]"
    )]
    PlaceholderInShell {
        /// The first item of the command.
        program: String,
        /// What looks like a placeholder.
        placeholder: String,
    },
    /// An argument cannot be passed to any program.
    #[error(
        "argument {index} of the command contains a NUL character, which no program can be given"
    )]
    NulInArgument {
        /// Its place in the command; the program is 0.
        index: usize,
    },
    /// The directory to run in is not there.
    #[error("the working directory {path} of the command cannot be used: {source}")]
    BadDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The environment allow-list has a name that cannot be passed on.
    #[error(
        "the environment allow-list has {name:?}; write names of variables, without \"=\" and not \
         beginning with DELIVERY_"
    )]
    BadVariable {
        /// The name.
        name: String,
    },
    /// Two allowed headers would be one variable.
    #[error(
        "the allowed headers {first:?} and {second:?} would both be the variable {variable}; allow one of them"
    )]
    HeadersCollide {
        /// One header.
        first: String,
        /// The other.
        second: String,
        /// The variable of both.
        variable: String,
    },
}

fn short_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}
