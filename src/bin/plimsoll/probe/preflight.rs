//! `probe --preflight`: what of the machine's state would be measured instead of the machine. Reads, and changes
//! nothing.

use super::args::{Args, Floor};
use crate::bytes::{grouped, human};
use crate::failure::Failure;
use crate::{output, show};
use plimsoll::MemoryPolicy;
use plimsoll::estimator::budget::Setting;
use plimsoll::runtime::host::{self, Group, HostMemory, Process};
use serde::Serialize;
use serde_json::json;

/// What a check says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Nothing to do.
    Ok,
    /// Has to be changed first.
    Fix,
    /// Somebody has to say whether it is meant.
    Ask,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    state: State,
    says: String,
}

/// What is looked at.
struct Machine {
    memory: HostMemory,
    largest: Vec<Process>,
    address_space: Option<u64>,
    data_size: Option<u64>,
    group: Option<Group>,
    /// What the operator asks, by flags and environment.
    policy: MemoryPolicy,
    /// Bytes of the model's tensors, where one was named.
    model: Option<u64>,
}

/// Prints the checks.
pub fn run(args: &Args) -> Result<(), Failure> {
    // A setting that is no amount is an error here as it would be in the probe.
    let policy = args.machine.policy()?;
    let model = match args.model.path() {
        Some(_) => {
            let opened = args.model.open()?;
            Some(opened.checkpoint.tensors().map(|tensor| tensor.bytes).fold(0, u64::saturating_add))
        }
        None => None,
    };
    let memory = HostMemory::take();
    memory.total.map(|total| args.floor(total)).transpose()?;
    let machine = Machine {
        memory,
        largest: host::largest(5),
        address_space: host::address_space(),
        data_size: host::data_size(),
        group: host::group(),
        policy,
        model,
    };
    let checks = checks(&machine, args.floor);
    if args.output.json {
        return Ok(output::document(&json!({"schema": 1, "preflight": checks}))?);
    }
    let mut table = show::table(&["check", "", ""], &[]);
    for check in &checks {
        let state = match check.state {
            State::Ok => "ok",
            State::Fix => "fix",
            State::Ask => "ask",
        };
        table.add_row([check.check, state, &check.says]);
    }
    Ok(output::print(format_args!("{table}\n"))?)
}

fn amount(bytes: u64) -> String {
    format!("{} ({})", grouped(bytes), human(bytes))
}

fn checks(machine: &Machine, floor: Floor) -> Vec<Check> {
    let check = |check, (state, says)| Check { check, state, says };
    let mut all = vec![
        check("free memory", free(&machine.memory, floor)),
        check("swap", swap(&machine.memory)),
        check("other processes", others(machine)),
        check("address space", limited(machine.address_space, "ulimit -v")),
        check("data size", limited(machine.data_size, "ulimit -d")),
    ];
    if let Some(group) = &machine.group {
        let (limit, file) = (amount(group.limit), group.file.display());
        let says = format!("limited to {limit} by {file}: the ceiling will be that limit's");
        all.push(check("control group", (State::Ask, says)));
    }
    all.extend([
        check("memory limit", ceiling(machine.policy.memory(), &machine.memory)),
        check("reserve", reserve(machine.policy.reserve(), &machine.memory)),
        check("retained", retained(&machine.policy)),
    ]);
    if let Some(bytes) = machine.model {
        all.push(check("model", fits(&machine.memory, floor, bytes)));
    }
    all
}

/// What a shell allows a process.
fn limited(to: Option<u64>, by: &str) -> (State, String) {
    match to {
        None => (State::Ok, "not limited".to_owned()),
        Some(bytes) => {
            (State::Ask, format!("limited to {} by {by}: the ceiling will be that limit's", amount(bytes)))
        }
    }
}

const UNKNOWN: &str = "this system does not say";

fn free(memory: &HostMemory, floor: Floor) -> (State, String) {
    let (Some(available), Some(total)) = (memory.available, memory.total) else {
        return (State::Ask, format!("{UNKNOWN}: no floor can be kept"));
    };
    let floor = floor.bytes(total);
    let says = format!("{} of {}, floor {}", amount(available), amount(total), amount(floor));
    if available <= floor {
        (State::Fix, format!("{says}: nothing could be loaded"))
    } else if available < total / 2 {
        (State::Ask, format!("{says}: more than half of the machine is in use"))
    } else {
        (State::Ok, says)
    }
}

fn swap(memory: &HostMemory) -> (State, String) {
    match (memory.swap_used, memory.swap_total) {
        (Some(_), Some(0)) => (State::Ok, "none".to_owned()),
        (Some(used), Some(total)) if used <= super::SWAP_NOISE => {
            (State::Ok, format!("{} in use of {}", amount(used), amount(total)))
        }
        (Some(used), Some(total)) => {
            let says = "growth counts from there; what was swapped out before hides who needs it";
            (State::Ask, format!("{} in use of {}: {says}", amount(used), amount(total)))
        }
        _ => (State::Ask, UNKNOWN.to_owned()),
    }
}

/// Processes that hold more than a twentieth of what there is. They are looked for on the whole machine, and where a
/// control group is the limit, only those in it take from it: which they are it does not say.
fn others(machine: &Machine) -> (State, String) {
    let largest = &machine.largest;
    let Some(total) = machine.memory.total.filter(|_| !largest.is_empty()) else {
        return (State::Ask, UNKNOWN.to_owned());
    };
    let pool = match &machine.group {
        Some(_) => "of the machine, of which only those in the control group count against its limit: ",
        None => "of the machine: ",
    };
    let name =
        |process: &Process| format!("{} ({}) holds {}", process.name, process.pid, human(process.resident));
    let big: Vec<String> = largest.iter().filter(|p| p.resident > total / 20).map(name).collect();
    match largest.first() {
        Some(first) if big.is_empty() => (State::Ok, format!("{pool}the largest, {}", name(first))),
        _ => (State::Ask, pool.to_owned() + &big.join(", ")),
    }
}

/// A setting and where it is from.
fn set(setting: &Setting) -> String {
    format!("{} by {}", amount(setting.bytes), setting.name)
}

/// The operator's ceiling: where it is below what is free, the ceiling of the probe will be it.
fn ceiling(asked: Option<&Setting>, memory: &HostMemory) -> (State, String) {
    match asked {
        None => (State::Ok, "none".to_owned()),
        Some(asked) if memory.available.is_none_or(|available| asked.bytes < available) => {
            let says = format!("{}: the ceiling will be that limit's, unless there is --insist", set(asked));
            (State::Ask, says)
        }
        Some(asked) => (State::Ok, format!("{}, more than is free", set(asked))),
    }
}

/// What is left for others of every reading.
fn reserve(asked: Option<&Setting>, memory: &HostMemory) -> (State, String) {
    match asked.filter(|asked| asked.bytes > 0) {
        None => (State::Ok, "none".to_owned()),
        Some(asked) if memory.available.is_some_and(|available| asked.bytes >= available) => {
            (State::Fix, format!("{}: nothing could be loaded", set(asked)))
        }
        Some(asked) => {
            (State::Ask, format!("{}: no step goes past it, unless there is --insist", set(asked)))
        }
    }
}

/// What is kept without being live. A probe keeps nothing of it, and says it in its log.
fn retained(policy: &MemoryPolicy) -> (State, String) {
    let limit = policy.cache_limit();
    let most = limit.bytes.map_or(String::new(), |bytes| format!("at most {}, ", amount(bytes)));
    (State::Ok, most + &limit.source)
}

fn fits(memory: &HostMemory, floor: Floor, bytes: u64) -> (State, String) {
    let (Some(available), Some(total)) = (memory.available, memory.total) else {
        return (State::Ask, UNKNOWN.to_owned());
    };
    let room = available.saturating_sub(floor.bytes(total));
    let says = format!("tensors of {}, {} above the floor", amount(bytes), amount(room));
    // A device with memory of its own does not take it from the machine's.
    (if bytes < room { State::Ok } else { State::Ask }, says)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_its_three_answers() {
        let gib = |n: u64| n << 30;
        let memory = |available, used, swap| HostMemory {
            available: Some(gib(available)),
            total: Some(gib(100)),
            swap_used: Some(gib(used)),
            swap_total: Some(gib(swap)),
        };
        let floor = Floor::default();
        let states = |memory: HostMemory, resident, address_space: Option<u64>, model| {
            let largest = vec![Process { pid: 7, name: "other".into(), resident: gib(resident) }];
            let group = address_space.map(|limit| Group { limit, available: limit, file: "/limit".into() });
            let policy = MemoryPolicy::default();
            let data_size = None;
            let machine = Machine { memory, largest, address_space, data_size, group, policy, model };
            checks(&machine, floor).iter().map(|check| check.state).collect::<Vec<_>>()
        };
        use State::{Ask, Fix, Ok};
        assert_eq!(states(memory(80, 0, 0), 1, None, None), [Ok; 8]);
        let full = states(memory(40, 1, 8), 30, Some(gib(4)), Some(gib(20)));
        assert_eq!(full, [Ask, Ask, Ask, Ask, Ok, Ask, Ok, Ok, Ok, Ok]);
        assert_eq!(states(memory(9, 0, 8), 5, None, Some(gib(20))), [Fix, Ok, Ok, Ok, Ok, Ok, Ok, Ok, Ask]);
        assert_eq!(states(HostMemory::default(), 1, None, Some(1)), [Ask, Ask, Ask, Ok, Ok, Ok, Ok, Ok, Ask]);

        assert_eq!(limited(None, "ulimit -d").0, Ok);
        let (state, says) = limited(Some(gib(1)), "ulimit -d");
        assert!(state == Ask && says.contains("1,073,741,824") && says.contains("ulimit -d"), "{says}");
        let set = |bytes| Setting { bytes: gib(bytes), name: "flag".into() };
        let free = memory(40, 0, 0);
        assert_eq!([50, 40, 39].map(|bytes| ceiling(Some(&set(bytes)), &free).0), [Ok, Ok, Ask]);
        assert_eq!([0, 39, 40].map(|bytes| reserve(Some(&set(bytes)), &free).0), [Ok, Ask, Fix]);
    }
}
