//! `probe --preflight`: what of the machine's state would be measured instead of the machine. Reads, and changes
//! nothing.

use super::args::{Args, Floor};
use crate::bytes::{grouped, human};
use crate::failure::Failure;
use crate::{output, show};
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
    group: Option<Group>,
    /// Bytes of the model's tensors, where one was named.
    model: Option<u64>,
}

/// Prints the checks.
pub fn run(args: &Args) -> Result<(), Failure> {
    let model = match args.model.path() {
        Some(_) => {
            let opened = args.model.open()?;
            Some(opened.checkpoint.tensors().map(|tensor| tensor.bytes).fold(0, u64::saturating_add))
        }
        None => None,
    };
    let machine = Machine {
        memory: HostMemory::take(),
        largest: host::largest(5),
        address_space: host::address_space(),
        group: host::group(),
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
        check("other processes", others(&machine.memory, &machine.largest)),
        check(
            "address space",
            match machine.address_space {
                None => (State::Ok, "not limited".to_owned()),
                Some(bytes) => {
                    (State::Ask, format!("limited to {}: the ceiling will be that limit's", amount(bytes)))
                }
            },
        ),
    ];
    if let Some(group) = &machine.group {
        let (limit, file) = (amount(group.limit), group.file.display());
        let says = format!("limited to {limit} by {file}: the ceiling will be that limit's");
        all.push(check("control group", (State::Ask, says)));
    }
    if let Some(bytes) = machine.model {
        all.push(check("model", fits(&machine.memory, floor, bytes)));
    }
    all
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

/// Processes that hold more than a twentieth of the machine.
fn others(memory: &HostMemory, largest: &[Process]) -> (State, String) {
    let Some(total) = memory.total.filter(|_| !largest.is_empty()) else {
        return (State::Ask, UNKNOWN.to_owned());
    };
    let name =
        |process: &Process| format!("{} ({}) holds {}", process.name, process.pid, human(process.resident));
    let big: Vec<String> = largest.iter().filter(|p| p.resident > total / 20).map(name).collect();
    match largest.first() {
        Some(first) if big.is_empty() => (State::Ok, format!("the largest, {}", name(first))),
        _ => (State::Ask, big.join(", ")),
    }
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
            let machine = Machine { memory, largest, address_space, group, model };
            checks(&machine, floor).iter().map(|check| check.state).collect::<Vec<_>>()
        };
        use State::{Ask, Fix, Ok};
        assert_eq!(states(memory(80, 0, 0), 1, None, None), [Ok, Ok, Ok, Ok]);
        assert_eq!(states(memory(40, 1, 8), 30, Some(gib(4)), Some(gib(20))), [Ask, Ask, Ask, Ask, Ask, Ok]);
        assert_eq!(states(memory(9, 0, 8), 5, None, Some(gib(20))), [Fix, Ok, Ok, Ok, Ask]);
        assert_eq!(states(HostMemory::default(), 1, None, Some(1)), [Ask, Ask, Ask, Ok, Ask]);
    }
}
