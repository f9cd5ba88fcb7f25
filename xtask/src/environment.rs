//! Virtual environments of Python, in the target folder. Invariant: an environment's stamp holds
//! the interpreter's version and the requirements that were installed into it, and is written last;
//! an environment without the right stamp is made from scratch.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::Log;
use crate::workspace::Workspace;

/// What the tests need.
const REQUIREMENTS: &str = "python/requirements-dev.txt";
/// What wheels of a release need in addition.
const OF_RELEASES: &str = "python/requirements-dist.txt";
/// The oldest Python that the tests run on.
const OLDEST: (u32, u32) = (3, 11);

/// An environment, made or not.
#[derive(Clone, Debug)]
pub struct Environment {
    pub folder: PathBuf,
    contents: Contents,
}

/// What is installed into an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Contents {
    /// What the tests need.
    Tests,
    /// The same with this version of PyTorch.
    Torch(String),
    /// What the tests need, and wheels of a release.
    Release,
}

impl Environment {
    /// That of the tests.
    pub fn of_tests(workspace: &Workspace) -> Environment {
        Environment { folder: workspace.target.join("python-venv"), contents: Contents::Tests }
    }

    /// That of the tests with another version of PyTorch, given as three numbers.
    pub fn with_torch(workspace: &Workspace, version: &str) -> Result<Environment> {
        let numbers: Vec<&str> = version.split('.').collect();
        let is_number = |number: &&str| number.parse::<u32>().is_ok();
        ensure!(
            numbers.len() == 3 && numbers.iter().all(is_number),
            "`{version}` is no version of PyTorch; write three numbers, such as 2.11.0"
        );
        Ok(Environment {
            folder: workspace.target.join(format!("python-venv-{version}")),
            contents: Contents::Torch(version.to_string()),
        })
    }

    /// That in which the wheel of a release is built and tried.
    pub fn of_releases(workspace: &Workspace) -> Environment {
        let folder = workspace.target.join("python-venv-dist");
        Environment { folder, contents: Contents::Release }
    }

    /// One of its programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// The search path with its programs first.
    pub fn path(&self) -> Result<OsString> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.folder.join("bin")).chain(std::env::split_paths(&path));
        Ok(std::env::join_paths(folders)?)
    }

    /// Makes it if it is missing or stale.
    pub fn make(&self, workspace: &Workspace, log: &mut Log) -> Result<()> {
        let stamp = self.folder.join("requirements-installed.txt");
        let required = self.required(workspace)?;
        let python = usable_python(workspace)?;
        let wanted = format!("# Python {python}\n{required}");
        let is_there = ["python", "maturin"].iter().all(|name| self.program(name).exists());
        if is_fresh(&stamp, &wanted) && is_there {
            log.say(&format!("{} is up to date", self.folder.display()));
            return Ok(());
        }
        let mut create = workspace.command("python3");
        create.args(["-m", "venv", "--clear"]).arg(&self.folder);
        log.run(create)?;
        let list = self.folder.join("requirements.txt");
        fs::write(&list, &required).with_context(|| list.display().to_string())?;
        // If uv can be installed, it does in twenty seconds what takes pip minutes.
        let mut by_pip = self.pip(workspace);
        by_pip.arg("uv");
        let by_uv = log.run(by_pip).and_then(|()| {
            let mut uv = workspace.command(self.program("uv"));
            uv.args(["pip", "install", "--quiet", "--python"]).arg(self.program("python"));
            uv.arg("--requirement").arg(&list);
            log.run(uv)
        });
        if let Err(error) = by_uv {
            log.say(&format!("without uv, since {error:#}"));
            let mut by_pip = self.pip(workspace);
            by_pip.arg("--requirement").arg(&list);
            log.run(by_pip).with_context(|| {
                let list: Vec<&str> = required.lines().collect();
                format!(
                    "with Python {python}, these cannot be installed together, and what pip \
                     printed says which of them: {}",
                    list.join(", ")
                )
            })?;
        }
        fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())
    }

    /// pip's command to install what is added to it.
    pub fn pip(&self, workspace: &Workspace) -> Command {
        let mut install = workspace.command(self.program("python"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        install
    }

    /// What is to be installed, one to a line.
    fn required(&self, workspace: &Workspace) -> Result<String> {
        let read = |file: &'static str| fs::read_to_string(workspace.root.join(file)).context(file);
        let required = read(REQUIREMENTS)?;
        match &self.contents {
            Contents::Tests => Ok(required),
            Contents::Torch(version) => Ok(other_torch(&required, version)),
            Contents::Release => Ok(required + &read(OF_RELEASES)?),
        }
    }
}

/// The same requirements with another version of PyTorch. Each torchvision requires one version of
/// PyTorch, so the installer finds the torchvision that matches.
fn other_torch(required: &str, version: &str) -> String {
    let line = |line: &str| match line.split_once("==") {
        Some(("torch", _)) => format!("torch=={version}\n"),
        Some(("torchvision", _)) => "torchvision\n".to_string(),
        _ => format!("{line}\n"),
    };
    required.lines().map(line).collect()
}

fn is_fresh(stamp: &Path, wanted: &str) -> bool {
    fs::read_to_string(stamp).is_ok_and(|installed| installed == wanted)
}

/// The version of a `python3` that can make environments.
fn usable_python(workspace: &Workspace) -> Result<String> {
    let (major, minor) = OLDEST;
    let probe = workspace
        .command("python3")
        .args(["-c", "import sys; print(*sys.version_info[:3], sep='.'); import venv, ensurepip"])
        .output()
        .with_context(|| {
            format!("python3 was not found; install Python {major}.{minor} or later")
        })?;
    let version = String::from_utf8_lossy(&probe.stdout).trim().to_string();
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let found = numbers.next().zip(numbers.next());
    let said = String::from_utf8_lossy(&probe.stderr);
    ensure!(found.is_some(), "python3 does not run: {}", said.trim());
    ensure!(
        found >= Some(OLDEST),
        "python3 is Python {version}; install Python {major}.{minor} or later"
    );
    ensure!(
        probe.status.success(),
        "python3 has no venv module; install it (Debian and Ubuntu: apt install python3-venv)"
    );
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_of_other_requirements_is_stale() {
        let stamp = std::env::temp_dir().join(format!("tightfit-stamp-{}", std::process::id()));
        assert!(!is_fresh(&stamp, "pytest==1"));
        fs::write(&stamp, "pytest==1").unwrap();
        assert!(is_fresh(&stamp, "pytest==1") && !is_fresh(&stamp, "pytest==2"));
        fs::remove_file(&stamp).unwrap();
    }

    #[test]
    fn torchvision_follows_pytorch() {
        let required = "accelerate==1.15.0\ntorch==2.15.0\ntorchvision==0.29.2\n";
        let other = "accelerate==1.15.0\ntorch==2.11.0\ntorchvision\n";
        assert_eq!(other_torch(required, "2.11.0"), other);
    }

    #[test]
    fn each_version_of_pytorch_has_an_environment() {
        let workspace = Workspace { root: "r".into(), target: "t".into() };
        let folder = |version| Environment::with_torch(&workspace, version).map(|made| made.folder);
        assert_eq!(folder("2.11.0").unwrap(), Path::new("t/python-venv-2.11.0"));
        for version in ["2.11", "2.11.0.1", "2.x.0", "", "../2.11.0"] {
            assert!(folder(version).is_err(), "{version}");
        }
    }
}
