//! The seccomp profile of `deploy/` as filters of the kernel.

use std::fs;

use nix::errno::Errno;
use seccompiler::{BpfProgram, TargetArch, compile_from_json};
use serde::Deserialize;
use serde_json::{Value, json};

/// The profile format of Docker, as far as the profile uses it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    pub default_action: String,
    pub default_errno_ret: u32,
    pub arch_map: Vec<Value>,
    pub syscalls: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    #[serde(rename = "comment")]
    _comment: String,
    pub names: Vec<String>,
    pub action: String,
    pub errno_ret: Option<u32>,
    #[serde(default)]
    pub args: Vec<Argument>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Argument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// Reads the profile in `deploy/`.
pub fn profile() -> Profile {
    let path = super::repository().join("deploy/seccomp-io-uring.json");
    serde_json::from_str(&fs::read_to_string(path).expect("it is there")).expect("Docker can read it")
}

impl Profile {
    /// Removes calls from the permitted ones.
    pub fn forbid(&mut self, calls: &[&str]) {
        for rule in &mut self.syscalls {
            rule.names.retain(|name| !calls.contains(&&**name));
        }
    }
}

impl Argument {
    fn condition(&self) -> Value {
        let (op, value) = match self.op.as_str() {
            "SCMP_CMP_EQ" => (json!("eq"), self.value),
            // The mask is the first value.
            "SCMP_CMP_MASKED_EQ" => (json!({ "masked_eq": self.value }), self.value_two),
            other => panic!("unsupported operator {other}"),
        };
        json!({ "index": self.index, "type": "qword", "op": op, "val": value })
    }
}

/// Compiles the profile to filters, in the order in which they must be applied.
pub fn filters(profile: &Profile) -> Vec<BpfProgram> {
    assert_eq!((profile.default_action.as_str(), profile.default_errno_ret), ("SCMP_ACT_ERRNO", 1));
    let (mut allowed, mut refused) = (Vec::new(), Vec::new());
    for rule in &profile.syscalls {
        let args: Vec<Value> = rule.args.iter().map(Argument::condition).collect();
        for name in &rule.names {
            let mut entry = json!({ "syscall": name });
            if !args.is_empty() {
                entry["args"] = json!(args);
            }
            match (rule.action.as_str(), rule.errno_ret) {
                ("SCMP_ACT_ALLOW", None) => allowed.push(entry),
                ("SCMP_ACT_ERRNO", Some(errno)) if errno == Errno::ENOSYS as u32 => refused.push(entry),
                (action, errno) => panic!("{name}: unsupported action {action} {errno:?}"),
            }
        }
    }
    // If several filters refuse a call, the last one determines the error.
    vec![allowing(allowed), filter("allow", json!({ "errno": Errno::ENOSYS as u32 }), refused)]
}

/// Returns a filter that permits only these calls.
pub fn allowing(calls: Vec<Value>) -> BpfProgram {
    filter(json!({ "errno": Errno::EPERM as u32 }), "allow", calls)
}

fn filter(otherwise: impl Into<Value>, matched: impl Into<Value>, calls: Vec<Value>) -> BpfProgram {
    let filter = json!({ "all": {
        "mismatch_action": otherwise.into(), "match_action": matched.into(), "filter": calls,
    } });
    let compiled = compile_from_json(filter.to_string().as_bytes(), TargetArch::x86_64);
    compiled.expect("the kernel knows these calls").remove("all").expect("the filter was compiled")
}
