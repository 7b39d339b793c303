//! Starting the program: descriptors 0 to 3, a clear environment, a process group of its own.
//!
//! The way is `posix_spawn`, which does not copy our page tables: starting a command costs the
//! same however much memory we hold. The standard library uses it too, but not together with a
//! descriptor 3, and `posix_spawn` has no portable way to set a directory; a command with a
//! directory of its own is therefore started by the standard library, with a full fork.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::Pid;

/// The command's own ends of its pipes; dropping them closes ours of them.
#[derive(Debug)]
pub(super) struct ChildEnds {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) metadata: OwnedFd,
}

/// A program that was found, with everything of it that is the same for each delivery.
#[derive(Debug)]
pub(super) struct Program {
    path: CString,
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: Option<PathBuf>,
    inherited: Vec<RawFd>,
}

/// The descriptor on which metadata is.
const METADATA_FD: RawFd = 3;

impl Program {
    pub(super) fn new(
        path: CString,
        argv: Vec<CString>,
        env: Vec<CString>,
        cwd: Option<PathBuf>,
    ) -> Self {
        Self {
            path,
            argv,
            env,
            cwd,
            inherited: inherited_descriptors(),
        }
    }

    /// Gives the whole path of the program.
    pub(super) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }

    /// Starts it as the leader of a new process group. It holds the calling thread until the
    /// program is loaded, so that "cannot be started" is an answer of this call.
    pub(super) fn start(&self, ends: ChildEnds, variables: &[CString]) -> io::Result<Pid> {
        match &self.cwd {
            None => self.start_here(ends, variables),
            Some(cwd) => self.start_in(cwd, ends, variables),
        }
    }

    fn start_here(&self, ends: ChildEnds, variables: &[CString]) -> io::Result<Pid> {
        let ends = [ends.stdin, ends.stdout, ends.stderr, ends.metadata]
            .map(above_metadata)
            .into_iter()
            .collect::<io::Result<Vec<OwnedFd>>>()?;
        let mut actions = PosixSpawnFileActions::init()?;
        for (end, target) in ends.iter().zip(0..) {
            actions.add_dup2(end.as_raw_fd(), target)?;
        }
        for &descriptor in &self.inherited {
            actions.add_close(descriptor)?;
        }
        let env: Vec<&CStr> = self
            .env
            .iter()
            .chain(variables)
            .map(AsRef::as_ref)
            .collect();
        let pid = posix_spawn(
            self.path.as_c_str(),
            &actions,
            &attributes()?,
            &self.argv,
            &env,
        )?;
        pid_of(pid.as_raw())
    }

    fn start_in(&self, cwd: &Path, ends: ChildEnds, variables: &[CString]) -> io::Result<Pid> {
        let text = |text: &CString| OsStr::from_bytes(text.to_bytes()).to_owned();
        let mut command = Command::new(self.path());
        command
            .arg0(text(&self.argv[0]))
            .args(self.argv[1..].iter().map(text))
            .env_clear()
            .envs(self.env.iter().chain(variables).filter_map(|v| split(v)))
            .current_dir(cwd)
            .process_group(0)
            .stdin(Stdio::from(ends.stdin))
            .stdout(Stdio::from(ends.stdout))
            .stderr(Stdio::from(ends.stderr))
            .fd_mappings(vec![FdMapping {
                parent_fd: ends.metadata,
                child_fd: METADATA_FD,
            }])
            .map_err(io::Error::other)?;
        // The standard library's Child neither kills nor waits when it is dropped; ours does.
        let child = command.spawn()?;
        pid_of(i32::try_from(child.id()).map_err(io::Error::other)?)
    }
}

/// Its own process group; signals as a program expects them (we ignore SIGPIPE; no one blocks any).
fn attributes() -> io::Result<PosixSpawnAttr> {
    let mut attributes = PosixSpawnAttr::init()?;
    let mut defaults = SigSet::empty();
    defaults.add(Signal::SIGPIPE);
    attributes.set_sigdefault(&defaults)?;
    attributes.set_sigmask(&SigSet::empty())?;
    attributes.set_pgroup(nix::unistd::Pid::from_raw(0))?;
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETPGROUP
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK,
    )?;
    Ok(attributes)
}

/// Moves a descriptor out of the way of the four that the command gets; one after another is put
/// in its place, so a source among the targets would be overwritten before it is used.
fn above_metadata(end: OwnedFd) -> io::Result<OwnedFd> {
    if end.as_raw_fd() > METADATA_FD {
        return Ok(end);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&end, METADATA_FD + 1)?)
}

fn pid_of(raw: i32) -> io::Result<Pid> {
    Pid::from_raw(raw).ok_or_else(|| io::Error::other("the started command has no process id"))
}

fn split(variable: &CString) -> Option<(&OsStr, &OsStr)> {
    let bytes = variable.to_bytes();
    let at = bytes.iter().position(|b| *b == b'=')?;
    Some((
        OsStr::from_bytes(&bytes[..at]),
        OsStr::from_bytes(&bytes[at + 1..]),
    ))
}

/// Lists descriptors above 3 that whoever started us left open for every program we start; we open
/// none of this kind. They are closed in the command, so that it has 0 to 3 and no other.
fn inherited_descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&descriptor| descriptor > METADATA_FD && survives_exec(descriptor))
        .collect()
}

fn survives_exec(descriptor: RawFd) -> bool {
    const CLOEXEC: u32 = 0o2_000_000;
    let Ok(info) = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")) else {
        return false;
    };
    info.lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & CLOEXEC == 0)
}
