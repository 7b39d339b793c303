//! Breadth first over every reachable pair of state and history, for all combinations of rules.
//!
//! `apply` itself asserts S1–S5, S7 and S9–S13 on every edge; here S8 is asserted where a pair is
//! refused, and S6 on the whole graph.

use std::collections::{HashMap, VecDeque};

use super::*;

/// Everything reachable: the machines, and who reaches whom.
struct Reachable {
    machines: Vec<Machine>,
    reached_from: Vec<Vec<usize>>,
    edges: usize,
}

fn walk(rules: Rules, alphabet: &[Event]) -> Reachable {
    let first = Machine::new(rules);
    let mut index = HashMap::from([((first.state, first.history), 0)]);
    let mut found = Reachable {
        machines: vec![first],
        reached_from: vec![Vec::new()],
        edges: 0,
    };
    let mut open = VecDeque::from([0]);
    let mut effects = Vec::new();
    while let Some(at) = open.pop_front() {
        let before = found.machines[at];
        for event in alphabet {
            let mut machine = before;
            effects.clear();
            if machine.apply(*event, &mut effects).is_err() {
                assert!(machine == before && effects.is_empty(), "S8: {event:?}");
                continue;
            }
            found.edges += 1;
            let next = *index
                .entry((machine.state, machine.history))
                .or_insert_with(|| {
                    found.machines.push(machine);
                    found.reached_from.push(Vec::new());
                    open.push_back(found.machines.len() - 1);
                    found.machines.len() - 1
                });
            if next != at {
                found.reached_from[next].push(at);
            }
        }
    }
    found
}

/// Counts the machines from which no sequence of events ends the life.
fn trapped(found: &Reachable) -> usize {
    let mut can_end = vec![false; found.machines.len()];
    let mut open: Vec<usize> = (0..found.machines.len())
        .filter(|at| found.machines[*at].state().is_terminal())
        .collect();
    while let Some(at) = open.pop() {
        if !can_end[at] {
            can_end[at] = true;
            open.extend(&found.reached_from[at]);
        }
    }
    can_end.iter().filter(|ends| !**ends).count()
}

fn check(rules: Rules, alphabet: &[Event]) -> usize {
    let found = walk(rules, alphabet);
    assert_eq!(trapped(&found), 0, "S6 under {rules:?}");
    assert!(found.edges > found.machines.len(), "nothing was walked");
    found.machines.len()
}

#[test]
fn every_reachable_pair_keeps_every_invariant_and_can_end() {
    for rules in combinations() {
        let pairs = check(rules, &short_alphabet());
        // A walk that finds little proves little.
        assert!(pairs > 200, "only {pairs} pairs under {rules:?}");
    }
}

#[test]
fn so_it_is_with_every_word_and_under_every_variation_of_the_rules() {
    for vary in variations() {
        for mut rules in four_combinations() {
            vary(&mut rules);
            check(rules, &alphabet());
        }
    }
}

#[test]
fn a_machine_stays_small() {
    let size = std::mem::size_of::<Machine>();
    assert!(size < 200, "{size} bytes, and 100,000 are in flight");
}
