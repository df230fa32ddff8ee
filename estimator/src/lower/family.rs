//! Dispatches that differ in nothing but where they begin: a stack of experts is a thousand of them, the states of many
//! slots are dozens, and layers are the same but for where their vectors stand. Where only their sum is asked for, one
//! draft stands for all.

use crate::alike::Classes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Segments of a pool from which on one stands for others.
pub(super) const MANY: usize = 4;

/// Such dispatches: each of some experts (or none) with each of some rows (or slots), for each of some layers. The
/// parameters of one are `base + expert · by_expert + row · by_row`, word by word, modulo 2³², and where they say where a
/// vector stands its place more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    /// Those of a dispatch that begins at the first row of the first expert.
    pub base: Vec<u32>,
    /// `None` where all begin there.
    steps: Option<Arc<Steps>>,
    /// Each of these experts is begun with
    pub experts: Vec<u32>,
    /// at each of these rows.
    pub rows: Vec<u32>,
    /// Where it stands for the layers of a [`Layers`]: word by word a bit for each vector of the op whose place is in it.
    /// The base has all vectors at 0 then.
    places: Option<(Arc<[u32]>, usize)>,
}

/// Classes of the ops that a family stands for; see [`Classes::places`].
pub(crate) type Layers = Vec<u32>;

/// What the parameters of the next expert and of the next row are more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    by_expert: Vec<u32>,
    by_row: Vec<u32>,
}

impl Steps {
    /// Between the parameters `words` of dispatches that begin there.
    pub fn of(words: impl Fn(u32, u32) -> Vec<u32>) -> Self {
        let base = words(0, 0);
        let by = |words: Vec<u32>| words.iter().zip(&base).map(|(a, b)| a.wrapping_sub(*b)).collect();
        Self { by_expert: by(words(1, 0)), by_row: by(words(0, 1)) }
    }
}

impl Family {
    /// The family of a dispatch that begins here, with no other in it.
    pub fn of(base: Vec<u32>, steps: Arc<Steps>, expert: u32, row: u32) -> Self {
        Self { base, steps: Some(steps), experts: vec![expert], rows: vec![row], places: None }
    }

    /// That of a dispatch that begins nowhere else.
    pub fn one(base: Vec<u32>) -> Self {
        Self { base, steps: None, experts: vec![0], rows: vec![0], places: None }
    }

    /// Takes one more. What a shard begins with its first row follows with all of them.
    pub fn push(&mut self, expert: u32, row: u32) {
        match self.experts.as_slice() {
            [one] if *one == expert => self.rows.push(row),
            [.., last] if *last == expert => {}
            _ => self.experts.push(expert),
        }
    }

    /// Lets it stand for the layers of this index, where its base has vectors at `places`. By `masks` say which of them
    /// the words follow.
    pub fn follow(&mut self, masks: Arc<[u32]>, places: &[u32], layers: usize) {
        for (word, mask) in self.base.iter_mut().zip(&*masks) {
            *word = word.wrapping_sub(sum(*mask, places));
        }
        self.places = Some((masks, layers));
    }

    /// Whether it stands for several layers.
    pub fn follows(&self) -> bool {
        self.places.is_some()
    }

    /// Where each begins.
    pub fn firsts(&self) -> impl Iterator<Item = (u32, u32)> {
        self.experts.iter().flat_map(|&expert| self.rows.iter().map(move |&row| (expert, row)))
    }

    /// Whether all begin at one place: they differ in their layers alone.
    pub fn is_one(&self) -> bool {
        self.steps.is_none()
    }

    fn begins(&self) -> u64 {
        self.experts.len() as u64 * self.rows.len() as u64
    }

    /// What a word is more with the next expert and with the next row, and whose places are in it.
    fn varies(&self, word: usize) -> (u32, u32, u32) {
        let of = |steps: &[u32]| steps.get(word).copied().unwrap_or(0);
        let (by_expert, by_row) = self.steps.as_ref().map_or((0, 0), |s| (of(&s.by_expert), of(&s.by_row)));
        (by_expert, by_row, self.places.as_ref().map_or(0, |(masks, _)| of(masks)))
    }
}

/// The places of the vectors in a mask.
fn sum(mask: u32, places: &[u32]) -> u32 {
    let (mut left, mut sum) = (mask, 0u32);
    while left != 0 {
        let place = places.get(left.trailing_zeros() as usize).copied();
        sum = sum.wrapping_add(place.unwrap_or(0));
        left &= left - 1;
    }
    sum
}

/// A family and its layers.
#[derive(Clone, Copy)]
pub(crate) struct Members<'a> {
    family: &'a Family,
    /// Empty where it does not follow any.
    layers: &'a [u32],
    classes: &'a Classes,
}

impl<'a> Members<'a> {
    /// Of a family, in a summary with these layers.
    pub fn new(family: &'a Family, layers: &'a [Layers], classes: &'a Classes) -> Self {
        let index = family.places.as_ref().map(|(_, layers)| *layers);
        let layers = index.and_then(|index| layers.get(index)).map_or(&[][..], Vec::as_slice);
        Self { family, layers, classes }
    }

    /// Whether its family is one of layers alone.
    pub fn is_one(&self) -> bool {
        self.family.is_one()
    }

    /// How many parameters a dispatch has.
    pub fn length(&self) -> usize {
        self.family.base.len()
    }

    fn is(&self, other: &Self) -> bool {
        self.layers == other.layers && self.is_but_for_layers(other)
    }

    fn is_but_for_layers(&self, other: &Self) -> bool {
        let (a, b) = (self.family, other.family);
        (&a.experts, &a.rows) == (&b.experts, &b.rows) && self.is_but_for_members(other)
    }

    /// Whether the same layer, expert and row have the same parameters in both.
    fn is_but_for_members(&self, other: &Self) -> bool {
        let (a, b) = (self.family, other.family);
        let masks = |f: &'a Family| f.places.as_ref().map(|(masks, _)| masks);
        a.base == b.base && a.steps == b.steps && masks(a) == masks(b)
    }

    /// Whether some word says which layer it is, or it is the only one there; which expert, and which row.
    fn tells(&self) -> [bool; 3] {
        let own = |by| (0..self.length()).any(|i| self.family.varies(i) == by);
        [self.family.places.is_none() || self.tells_classes(), own((1, 0, 0)), own((0, 1, 0))]
    }

    /// Whether its layers are of classes that the parameters tell apart: every vector of the op has words of its own.
    fn tells_classes(&self) -> bool {
        let Some(&class) = self.layers.first() else { return false };
        let all = (0..self.length()).fold(0, |all, i| {
            let mask = self.family.varies(i).2;
            if mask.is_power_of_two() { all | mask } else { all }
        });
        // Layers of different classes have some vector in another place.
        all.count_ones() as usize == self.classes.places(class).len()
    }

    /// Whether its members' parameters differ wherever they begin or their layers' vectors do: each beginning has a word
    /// of its own.
    fn are_told(&self) -> bool {
        let own = |by| (0..self.family.base.len()).any(|i| self.family.varies(i) == by);
        (self.family.experts.len() == 1 || own((1, 0, 0))) && (self.family.rows.len() == 1 || own((0, 1, 0)))
    }

    /// The base of each layer.
    pub fn bases(&self) -> Vec<Vec<u32>> {
        let Family { base, places, .. } = self.family;
        let Some((masks, _)) = places else { return vec![base.clone()] };
        let of = |class: &u32| {
            let places = self.classes.places(*class);
            base.iter().zip(&**masks).map(|(word, mask)| word.wrapping_add(sum(*mask, places))).collect()
        };
        self.layers.iter().map(of).collect()
    }

    /// The parameters of each.
    fn words(&self) -> impl Iterator<Item = Vec<u32>> {
        let family = self.family;
        self.bases().into_iter().flat_map(move |base| {
            family.firsts().map(move |(expert, row)| {
                let of = |(i, word): (usize, &u32)| {
                    let (by_expert, by_row, _) = family.varies(i);
                    word.wrapping_add(expert.wrapping_mul(by_expert)).wrapping_add(row.wrapping_mul(by_row))
                };
                base.iter().enumerate().map(of).collect()
            })
        })
    }

    /// Layer, expert and row of each.
    fn each(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        let layers = if self.layers.is_empty() { &[0][..] } else { self.layers };
        let family = self.family;
        layers.iter().flat_map(move |&layer| family.firsts().map(move |(expert, row)| (layer, expert, row)))
    }

    /// How many there are, each once.
    fn count(&self) -> u64 {
        debug_assert!(self.are_told(), "{:?}", self.family);
        let layers = match self.layers {
            [] => 1,
            layers if self.tells_classes() => layers.len(),
            _ => self.bases().into_iter().collect::<FxHashSet<_>>().len(),
        };
        self.family.begins() * layers as u64
    }

    /// Whether these are the parameters of one of them.
    pub fn holds(&self, words: &[u32]) -> bool {
        let Family { base, .. } = self.family;
        let alike =
            |(i, (ours, word)): (usize, (&u32, &u32))| ours == word || self.family.varies(i) != (0, 0, 0);
        base.len() == words.len()
            && base.iter().zip(words).enumerate().all(alike)
            && self.words().any(|ours| ours == words)
    }
}

/// Families by what all parameters of each have in common.
pub(crate) struct Index<'a> {
    /// Words that are not the same throughout every family, by how many there are.
    varied: Vec<(usize, Vec<bool>)>,
    alike: FxHashMap<Vec<u32>, Vec<Members<'a>>>,
    key: Vec<u32>,
}

impl<'a> Index<'a> {
    /// Sorts families.
    pub fn new(members: &[Members<'a>]) -> Self {
        let mut this = Self { varied: Vec::new(), alike: FxHashMap::default(), key: Vec::new() };
        for Members { family, .. } in members {
            let length = family.base.len();
            let index = this.varied.iter().position(|(other, _)| *other == length).unwrap_or_else(|| {
                this.varied.push((length, vec![false; length]));
                this.varied.len() - 1
            });
            for (i, varied) in this.varied[index].1.iter_mut().enumerate() {
                *varied |= family.varies(i) != (0, 0, 0);
            }
        }
        for member in members {
            this.read(&member.family.base);
            match this.alike.get_mut(&this.key) {
                Some(alike) => alike.push(*member),
                None => {
                    this.alike.insert(this.key.clone(), vec![*member]);
                }
            }
        }
        this
    }

    /// Makes the key of parameters: families and parameters that have different ones share nothing. Answers whether any
    /// family has as many.
    fn read(&mut self, words: &[u32]) -> bool {
        let Some((_, varied)) = self.varied.iter().find(|(length, _)| *length == words.len()) else {
            return false;
        };
        self.key.clear();
        self.key.extend(words.iter().zip(varied).map(|(word, varied)| if *varied { 0 } else { *word }));
        true
    }

    /// How many different parameters there are.
    pub fn count(&self) -> u64 {
        self.alike.values().map(|members| union(members)).sum()
    }

    /// Whether these are the parameters of a member of any.
    pub fn holds(&mut self, words: &[u32]) -> bool {
        self.read(words)
            && self.alike.get(&self.key).is_some_and(|alike| alike.iter().any(|member| member.holds(words)))
    }
}

/// How many different parameters there are in families that may share some.
fn union(members: &[Members<'_>]) -> u64 {
    match members {
        [] => 0,
        [one, others @ ..] if others.iter().all(|other| other.is(one)) => one.count(),
        [one, others @ ..]
            if others.iter().all(|other| other.is_but_for_layers(one)) && one.tells_classes() =>
        {
            let mut layers: Vec<u32> = members.iter().flat_map(|m| m.layers).copied().collect();
            layers.sort_unstable();
            layers.dedup();
            layers.len() as u64 * one.family.begins()
        }
        [one, others @ ..]
            if others.iter().all(|other| other.is_but_for_members(one)) && all_told(members, one.tells()) =>
        {
            members.iter().flat_map(Members::each).collect::<FxHashSet<_>>().len() as u64
        }
        _ => members.iter().flat_map(Members::words).collect::<FxHashSet<_>>().len() as u64,
    }
}

/// Whether members that differ in layer, expert or row differ in their parameters, where these tell them.
fn all_told(members: &[Members<'_>], [layer, expert, row]: [bool; 3]) -> bool {
    let one = |of: fn(&Family) -> &[u32]| {
        let mut all = members.iter().map(|member| of(member.family));
        all.next().is_some_and(|first| first.len() == 1 && all.all(|other| other == first))
    };
    layer && (expert || one(|family| &family.experts)) && (row || one(|family| &family.rows))
}

/// How many different parameters there are in families with the numbers of their layers' bases.
pub(crate) fn begun(bases: &mut [(u32, &Family)]) -> u64 {
    bases.sort_unstable_by_key(|(base, _)| *base);
    bases.chunk_by(|(a, _), (b, _)| a == b).map(begins).sum()
}

/// How many beginnings there are in families of one base, each once.
fn begins(families: &[(u32, &Family)]) -> u64 {
    let Some((_, one)) = families.first() else { return 0 };
    let places = |family: &Family| family.rows == one.rows && family.experts == one.experts;
    if families.iter().all(|(_, family)| places(family)) {
        return one.begins();
    }
    if families.iter().any(|(_, family)| family.rows != one.rows) {
        return families.iter().flat_map(|(_, f)| f.firsts()).collect::<FxHashSet<_>>().len() as u64;
    }
    let mut experts: Vec<u32> = families.iter().flat_map(|(_, family)| &family.experts).copied().collect();
    experts.sort_unstable();
    experts.dedup();
    experts.len() as u64 * one.rows.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Classes {
        Classes::default()
    }

    #[test]
    fn a_family_holds_what_it_stands_for() {
        let words = |expert: u32, row: u32| vec![7, row, u32::MAX.wrapping_add(expert * 64), expert];
        let mut family = Family::of(words(0, 0), Arc::new(Steps::of(words)), 4, 0);
        for (expert, row) in [(4, 32), (8, 0), (8, 32)] {
            family.push(expert, row);
        }
        assert_eq!(family.firsts().collect::<Vec<_>>(), [(4, 0), (4, 32), (8, 0), (8, 32)]);
        let classes = none();
        let members = Members::new(&family, &[], &classes);
        for (expert, row) in family.firsts() {
            assert!(members.holds(&words(expert, row)));
        }
        assert!(!members.holds(&words(4, 16)) && !members.holds(&words(0, 0)) && !members.holds(&[7]));
        assert!(!members.holds(&[8, 0, 255, 4]));
        assert_eq!(members.count(), 4);
    }

    #[test]
    fn families_of_layers_are_counted_once() {
        // Three layers whose two vectors stand in other places; the first word follows the second vector.
        let classes = Classes::of_places(vec![vec![0, 10], vec![4, 14], vec![8, 14]]);
        let words = |places: &[u32]| vec![places[1] + 3, 5, places[0]];
        let mut both = Family::one(words(classes.places(0)));
        both.follow(Arc::from([2, 0, 1]), classes.places(0), 0);
        let mut second = Family::one(vec![13, 6, 9]);
        second.follow(Arc::from([2, 0, 0]), classes.places(0), 0);
        let layers = [vec![0, 1, 2], vec![1]];
        let of = |family| Members::new(family, &layers, &classes);
        for class in 0..3 {
            assert!(of(&both).holds(&words(classes.places(class))));
        }
        assert!(!of(&both).holds(&[13, 5, 4]) && !of(&both).holds(&[13, 6, 0]));
        // Two of the layers have the second vector in one place.
        assert_eq!((of(&both).count(), of(&second).count()), (3, 2));
        // One of the layers again, and by itself.
        let mut one = Family::one(words(classes.places(1)));
        one.follow(Arc::from([2, 0, 1]), classes.places(1), 1);
        let mut index = Index::new(&[of(&both), of(&one), of(&second), of(&both)]);
        assert_eq!(index.count(), 5);
        assert!(
            index.holds(&words(classes.places(2))) && index.holds(&[17, 6, 9]) && !index.holds(&[18, 6, 9])
        );
    }
}
