//! Groups of jobs: the tag `grp` makes a job a member of a group, and the tag `aft` holds a job until all members of a group
//! are deleted.
//!
//! A group exists while it has a member. When the last one is deleted, the group is done: it leaves the index, and the jobs
//! that it has held are released, many of them in background work. A later job of the same name begins another group, for
//! which they do not wait.
//!
//! A member that is held itself links its group to the one that it waits for. `stats-group` shows these links, so that a circle
//! of groups can be found.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use super::background::{Share, StepLimit};
use super::change::Change;
use super::engine::Engine;
use super::job::JobState;
use super::job_tags::{JobTags, store_text};
use super::transitions::To;
use super::work::Work;
use crate::bodies::{Bodies, Slot};
use crate::intrusive::{self, Chained, Linked, Links, List, NIL, Pages, mix_seeded};
use crate::time::Time;
use crate::values::ids::{GroupSlot, HoldSlot, JobId, JobKey, TagsKey};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;

/// All groups.
pub(super) struct Groups {
    slab: Pages<Group>,
    /// The groups that are not done.
    index: intrusive::Index,
    holds: Pages<Hold>,
    dependencies: Pages<Dependency>,
    dependency_index: intrusive::Index,
}

struct Group {
    name: Slot,
    /// Numbers of members by [`JobState`].
    members: [u32; JobState::COUNT],
    /// Jobs that wait for it, in the order in which they were put.
    waiting: List,
    /// What its members wait for.
    dependencies: List,
    hash: u64,
    chain: u32,
}

/// A job that waits for a group.
struct Hold {
    job: JobKey,
    group: GroupSlot,
    links: Links,
}

/// The link from a group to one that members of it wait for.
struct Dependency {
    from: GroupSlot,
    to: GroupSlot,
    /// Number of members of `from` that wait for `to`.
    jobs: u32,
    links: Links,
    chain: u32,
}

/// Statistics of one group.
#[derive(Clone, Copy, Debug)]
pub struct GroupStats {
    /// Numbers of members by [`JobState`].
    pub members: [u32; JobState::COUNT],
    /// Jobs that wait for the group.
    pub waiting_jobs: usize,
}

impl Groups {
    /// No groups. `seed` keeps clients from choosing names that collide.
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            slab: Pages::new(),
            index: intrusive::Index::new(seed),
            holds: Pages::new(),
            dependencies: Pages::new(),
            dependency_index: intrusive::Index::new(seed),
        }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.slab.bytes()
            + self.index.bytes()
            + self.holds.bytes()
            + self.dependencies.bytes()
            + self.dependency_index.bytes()
    }

    /// The number of groups, those that still release jobs too.
    pub(super) const fn len(&self) -> usize {
        self.slab.len()
    }

    /// Counts a member in another state, if the job with these tags has a group.
    #[cold]
    pub(super) fn count_member(&mut self, tags: &JobTags, before: JobState, after: JobState) {
        if let Some(group) = tags.group {
            let members = &mut self.slab[group.0].members;
            members[before as usize] -= 1;
            members[after as usize] += 1;
        }
    }

    /// What a job with these tags adds at most to [`bytes`](Self::bytes).
    pub(super) fn growth(&mut self, tags: Tags<'_>, bodies: &Bodies) -> usize {
        let group = tags.grp().map_or(0, |name| {
            self.slab.growth(1) + self.index.growth() + bodies.growth(name.as_bytes().len() as u32)
        });
        let is_dependent = tags.grp().is_some() && tags.aft().is_some();
        let dependency =
            if is_dependent { self.dependencies.growth(1) + self.dependency_index.growth() } else { 0 };
        let hold = if tags.aft().is_some() { self.holds.growth(1) } else { 0 };
        group + dependency + hold
    }

    /// The group of this name, if it is not done.
    fn find(&self, name: TubeName<'_>, bodies: &Bodies) -> Option<GroupSlot> {
        let is_it = |group: &Group| group.name(bodies) == name;
        self.index.find(&self.slab, self.hash(name), is_it).map(GroupSlot)
    }

    /// Adds a group to the index.
    fn add_indexed(&mut self, name: TubeName<'_>, bodies: &mut Bodies) -> GroupSlot {
        let slot = self.add(name, bodies);
        self.index.insert(&mut self.slab, slot.0);
        slot
    }

    /// Adds a group that is not in the index.
    fn add(&mut self, name: TubeName<'_>, bodies: &mut Bodies) -> GroupSlot {
        GroupSlot(self.slab.insert(Group {
            name: store_text(bodies, name.as_bytes()),
            members: [0; JobState::COUNT],
            waiting: List::new(),
            dependencies: List::new(),
            hash: self.hash(name),
            chain: NIL,
        }))
    }

    /// Removes a group that is done and has no waiting jobs.
    fn remove(&mut self, group: GroupSlot, bodies: &mut Bodies) {
        let group = self.slab.remove(group.0);
        assert!(group.is_done() && group.waiting.is_empty() && group.dependencies.is_empty());
        bodies.free(group.name);
    }

    /// Notes that a member of a group waits for another group.
    fn depend(&mut self, from: GroupSlot, to: GroupSlot) {
        let key = self.find_dependency(from, to).unwrap_or_else(|| {
            let dependency = Dependency { from, to, jobs: 0, links: Links::NONE, chain: NIL };
            let key = self.dependencies.insert(dependency);
            self.dependency_index.insert(&mut self.dependencies, key);
            self.slab[from.0].dependencies.push_back(&mut self.dependencies, key);
            key
        });
        self.dependencies[key].jobs += 1;
    }

    /// Notes that one member fewer waits.
    fn undepend(&mut self, from: GroupSlot, to: GroupSlot) {
        let key = self.find_dependency(from, to).expect("a member waits for the group");
        let dependency = &mut self.dependencies[key];
        dependency.jobs -= 1;
        if dependency.jobs == 0 {
            self.dependency_index.remove(&mut self.dependencies, key);
            self.slab[from.0].dependencies.remove(&mut self.dependencies, key);
            self.dependencies.remove(key);
        }
    }

    fn find_dependency(&self, from: GroupSlot, to: GroupSlot) -> Option<u32> {
        let hash = dependency_hash(from, to, self.dependency_index.seed());
        self.dependency_index.find(&self.dependencies, hash, |known| (known.from, known.to) == (from, to))
    }

    /// SipHash with the seed before the name.
    fn hash(&self, name: TubeName<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.index.seed());
        hasher.write(name.as_bytes());
        hasher.finish()
    }
}

impl Group {
    fn is_done(&self) -> bool {
        self.members == [0; JobState::COUNT]
    }

    fn name<'a>(&self, bodies: &'a Bodies) -> TubeName<'a> {
        TubeName::checked_before(bodies.bytes(&self.name))
    }
}

fn dependency_hash(from: GroupSlot, to: GroupSlot, seed: u64) -> u64 {
    mix_seeded(u64::from(from.0) << 32 | u64::from(to.0), seed)
}

impl Engine {
    /// Makes a job a member of the group that its tags name, if they do.
    pub(super) fn join_group(&mut self, job: JobKey, tags_key: TagsKey) {
        let Some(name) = self.jobs.tags[tags_key.0].tags(&self.bodies).grp() else { return };
        let group = match self.groups.find(name, &self.bodies) {
            Some(group) => group,
            None => {
                let name = name.as_bytes().to_vec();
                self.groups.add_indexed(TubeName::checked_before(&name), &mut self.bodies)
            }
        };
        self.groups.slab[group.0].members[self.jobs.get(job).state as usize] += 1;
        self.jobs.tags[tags_key.0].group = Some(group);
    }

    /// Removes a job from its group, if it has one. The job has left its container and is about to be deleted. Returns the
    /// group if it is done and has to be [ended](Self::end_group).
    pub(super) fn leave_group(&mut self, job: JobKey, tags_key: TagsKey) -> Option<GroupSlot> {
        let group = self.jobs.tags[tags_key.0].group.take()?;
        let record = &mut self.groups.slab[group.0];
        record.members[self.jobs.get(job).state as usize] -= 1;
        record.is_done().then_some(group)
    }

    /// Releases the jobs that a group has held. It has no members any more.
    #[cold]
    pub(super) fn end_group(&mut self, group: GroupSlot, now: Time) {
        self.groups.index.remove(&mut self.groups.slab, group.0);
        let record = &self.groups.slab[group.0];
        if !record.waiting.is_empty() {
            self.changes.push(Change::GroupDone(record.name(&self.bodies).as_bytes().into()));
        }
        self.with_share(Share::Releases, |engine, limit| {
            if !engine.continue_release(group, limit, now) {
                engine.work.push_back(Work::Release { group });
            }
        });
    }

    /// Releases held jobs of a group that is done, up to the limit. Returns true if there are no more, and the group is removed.
    pub(super) fn continue_release(&mut self, group: GroupSlot, limit: StepLimit, now: Time) -> bool {
        while let Some(hold) = self.groups.slab[group.0].waiting.front() {
            if self.is_reached(limit) {
                return false;
            }
            self.release_held(self.groups.holds[hold].job, limit, now);
        }
        self.groups.remove(group, &mut self.bodies);
        true
    }

    /// Makes a held job ready, or delayed if its delay is not over.
    fn release_held(&mut self, job: JobKey, limit: StepLimit, now: Time) {
        self.steps += 1;
        let until = self.jobs.lifecycle_mut(job).deadline;
        let to = if until > now { To::At(until) } else { To::Ready };
        self.transfer(job, to, None, None, limit, now);
    }

    /// The group for which a job with these tags has to wait now.
    pub(super) fn group_ahead(&self, tags_key: TagsKey) -> Option<GroupSlot> {
        self.groups.find(self.jobs.tags[tags_key.0].tags(&self.bodies).aft()?, &self.bodies)
    }

    /// Adds a held job to those that wait for a group.
    pub(super) fn wait_for_group(&mut self, job: JobKey, group: GroupSlot) {
        let tags_key = self.jobs.get(job).tags_key().expect("a held job has tags");
        let tags = &mut self.jobs.tags[tags_key.0];
        let Groups { slab, holds, .. } = &mut self.groups;
        let hold = holds.insert(Hold { job, group, links: Links::NONE });
        tags.hold = Some(HoldSlot(hold));
        slab[group.0].waiting.push_back(holds, hold);
        if let Some(from) = tags.group {
            self.groups.depend(from, group);
        }
    }

    /// Removes a held job from those that wait for its group.
    #[cold]
    pub(super) fn stop_waiting_for_group(&mut self, job: JobKey) {
        let tags_key = self.jobs.get(job).tags_key().expect("a held job has tags");
        let tags = &mut self.jobs.tags[tags_key.0];
        let Groups { slab, holds, .. } = &mut self.groups;
        let HoldSlot(hold) = tags.hold.take().expect("a held job waits for a group");
        let group = holds[hold].group;
        slab[group.0].waiting.remove(holds, hold);
        holds.remove(hold);
        if let Some(from) = tags.group {
            self.groups.undepend(from, group);
        }
    }

    /// Whether a held job is to be released, because its group is done.
    pub(super) fn is_released(&self, job: JobKey) -> bool {
        let hold = self.jobs.tags_of(job).and_then(|tags| tags.hold);
        hold.is_some_and(|hold| self.groups.slab[self.groups.holds[hold.0].group.0].is_done())
    }

    /// The group that a held job waits for, and the number of its members. It has none if the job is about to be released.
    pub(super) fn group_ahead_of(&self, job: JobKey) -> Option<(TubeName<'_>, u32)> {
        let Groups { slab, holds, .. } = &self.groups;
        let HoldSlot(hold) = self.jobs.tags_of(job)?.hold?;
        let group = &slab[holds[hold].group.0];
        Some((group.name(&self.bodies), group.members.iter().sum()))
    }

    /// The groups that are done and still hold jobs.
    pub fn done_groups(&self) -> impl Iterator<Item = TubeName<'_>> {
        self.work.iter().filter_map(|work| match work {
            Work::Release { group } => Some(self.groups.slab[group.0].name(&self.bodies)),
            _ => None,
        })
    }

    /// Puts restored jobs that were held back into that state, in the order of their ids. Background work releases those
    /// whose group is done.
    pub(super) fn settle_held(&mut self, mut jobs: Vec<(JobId, JobKey)>) {
        jobs.sort_unstable();
        let mut done: BTreeMap<Box<[u8]>, GroupSlot> = BTreeMap::new();
        for (_, job) in jobs {
            let tags_key = self.jobs.get(job).tags_key().expect("a held job has tags");
            let group = self.group_ahead(tags_key).unwrap_or_else(|| {
                let tags = self.jobs.tags[tags_key.0].tags(&self.bodies);
                let name: Box<[u8]> = tags.aft().expect("a held job waits for a group").as_bytes().into();
                *done.entry(name).or_insert_with_key(|name| {
                    self.groups.add(TubeName::checked_before(name), &mut self.bodies)
                })
            });
            self.enter_held(job, group);
        }
        done.into_values().for_each(|group| self.work.push_back(Work::Release { group }));
    }

    /// Returns the statistics of a group, if it has a member.
    pub fn group_stats(&self, name: TubeName<'_>) -> Option<GroupStats> {
        let group = &self.groups.slab[self.groups.find(name, &self.bodies)?.0];
        Some(GroupStats { members: group.members, waiting_jobs: group.waiting.len() })
    }

    /// The groups that members of a group wait for.
    pub fn groups_ahead(&self, name: TubeName<'_>) -> impl Iterator<Item = TubeName<'_>> {
        let Groups { slab, dependencies, .. } = &self.groups;
        let group = self.groups.find(name, &self.bodies).map(|group| &slab[group.0]);
        let links = group.into_iter().flat_map(|group| group.dependencies.iter(dependencies));
        links.map(|key| slab[dependencies[key].to.0].name(&self.bodies))
    }

    /// Asserts that groups, their members and the jobs that wait for them agree.
    pub(super) fn check_groups(&self) {
        let Groups { slab, index, holds, dependencies, dependency_index } = &self.groups;
        slab.check();
        holds.check();
        dependencies.check();
        index.check(slab);
        dependency_index.check(dependencies);
        assert_eq!(dependency_index.len(), dependencies.len(), "the index finds every link of groups");
        let releasing = |group: GroupSlot| {
            self.work
                .iter()
                .filter(|work| matches!(work, Work::Release { group: at } if *at == group))
                .count()
        };
        let (mut waiting, mut linked) = (0, 0);
        for (key, group) in slab.iter() {
            waiting += group.waiting.len();
            group.waiting.check(holds);
            group.dependencies.check(dependencies);
            linked += group.dependencies.iter(dependencies).count();
            assert_eq!(
                releasing(GroupSlot(key)),
                usize::from(group.is_done()),
                "work releases held jobs once"
            );
            assert_eq!(
                self.groups.find(group.name(&self.bodies), &self.bodies) == Some(GroupSlot(key)),
                !group.is_done()
            );
            let mut members = [0; JobState::COUNT];
            let mut ahead: Vec<GroupSlot> = Vec::new();
            for (job_key, job) in self.jobs.iter() {
                let Some(tags) = self.jobs.tags_of(job_key) else { continue };
                if tags.group == Some(GroupSlot(key)) {
                    members[job.state as usize] += 1;
                    ahead.extend(tags.hold.map(|hold| holds[hold.0].group));
                }
            }
            assert_eq!(
                group.members,
                members,
                "the members of {} are counted",
                group.name(&self.bodies).as_str()
            );
            for link in group.dependencies.iter(dependencies) {
                let Dependency { from, to, jobs, .. } = dependencies[link];
                let counted = ahead.iter().filter(|&&group| group == to).count();
                assert_eq!((from, jobs as usize), (GroupSlot(key), counted), "members that wait are counted");
                ahead.retain(|&group| group != to);
            }
            assert!(ahead.is_empty(), "every group that a member waits for is linked");
        }
        assert_eq!(linked, dependencies.len(), "links are counted");
        assert_eq!(waiting, self.totals.in_state(JobState::Held) as usize, "a held job waits for a group");
        for (key, job) in self.jobs.iter() {
            let tags = self.jobs.tags_of(key);
            let hold = tags.and_then(|tags| tags.hold);
            let is_waiting = hold.is_some_and(|hold| holds[hold.0].job == key);
            assert_eq!(is_waiting, job.state == JobState::Held, "job {} is held if it waits", job.id);
            assert_eq!(
                tags.and_then(|tags| tags.group).is_some(),
                tags.is_some_and(|tags| tags.tags(&self.bodies).grp().is_some()),
                "job {} is a member of its group",
                job.id
            );
        }
    }
}

impl Chained for Group {
    fn hash(&self, _seed: u64) -> u64 {
        self.hash
    }

    fn chain(&self) -> u32 {
        self.chain
    }

    fn set_chain(&mut self, next: u32) {
        self.chain = next;
    }
}

impl Chained for Dependency {
    fn hash(&self, seed: u64) -> u64 {
        dependency_hash(self.from, self.to, seed)
    }

    fn chain(&self) -> u32 {
        self.chain
    }

    fn set_chain(&mut self, next: u32) {
        self.chain = next;
    }
}

impl Linked for Hold {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Linked for Dependency {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}
