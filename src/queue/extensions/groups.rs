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

use crate::bodies::Bodies;
use crate::intrusive::{Links, List, NIL, Pages, Table, intrusive, pair};
use crate::queue::effects::{Change, Effects};
use crate::queue::long_work::Work;
use crate::queue::store::Store;
use crate::queue::store::job::{JobState, JobTags};
use crate::queue::store::names::{Name, named};
use crate::values::ids::{GroupSlot, HoldSlot, JobKey, TagsKey};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;

/// All groups.
pub struct Groups {
    /// Those that are done are hidden.
    table: Table<Group>,
    holds: Pages<Hold>,
    dependencies: Table<Dependency>,
}

struct Group {
    name: Name,
    /// Numbers of members by [`JobState`].
    members: [u32; JobState::COUNT],
    /// Jobs that wait for it, in the order in which they were put.
    waiting: List,
    /// What its members wait for.
    dependencies: List,
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

/// A group whose last member is gone. It is to be [ended](Groups::end).
#[must_use]
pub struct LastGone(GroupSlot);

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
    pub const fn new(seed: u64) -> Self {
        Self { table: Table::new(seed), holds: Pages::new(), dependencies: Table::new(seed) }
    }

    pub const fn bytes(&self) -> usize {
        self.table.bytes() + self.holds.bytes() + self.dependencies.bytes()
    }

    /// The number of groups, those that still release jobs too.
    pub const fn len(&self) -> usize {
        self.table.len()
    }

    /// Counts a member in another state, if the job with these tags has a group.
    #[cold]
    pub fn count_member(&mut self, tags: &JobTags, before: JobState, after: JobState) {
        if let Some(group) = tags.group {
            let members = &mut self.table[group.0].members;
            members[before as usize] -= 1;
            members[after as usize] += 1;
        }
    }

    /// What a job with these tags adds at most to [`bytes`](Self::bytes).
    pub fn growth(&mut self, tags: Tags<'_>, bodies: &Bodies) -> usize {
        let name = tags.grp().map(|name| name.as_bytes().len());
        let group = name.map_or(0, |length| self.table.growth_with_name(length, bodies));
        let is_dependent = tags.grp().is_some() && tags.aft().is_some();
        let dependency = if is_dependent { self.dependencies.growth() } else { 0 };
        let hold = if tags.aft().is_some() { self.holds.growth(1) } else { 0 };
        group + dependency + hold
    }

    /// Makes a job a member of the group that its tags name, if they do.
    pub fn join(&mut self, job: JobKey, tags_key: TagsKey, store: &mut Store) {
        let Store { jobs, bodies, .. } = store;
        let Some(name) = jobs.tags[tags_key.0].tags(bodies).grp() else { return };
        let group = match self.find(name, bodies) {
            Some(group) => group,
            None => {
                let name = name.as_bytes().to_vec();
                let group = self.new_group(&name, bodies);
                GroupSlot(self.table.insert(group))
            }
        };
        self.table[group.0].members[jobs.get(job).state as usize] += 1;
        jobs.tags[tags_key.0].group = Some(group);
    }

    /// Removes a job from its group, if it has one. The job has left its container and is about to be deleted. Returns the group if this
    /// was its last member.
    pub fn leave(&mut self, job: JobKey, tags_key: TagsKey, store: &mut Store) -> Option<LastGone> {
        let group = store.jobs.tags[tags_key.0].group.take()?;
        let record = &mut self.table[group.0];
        record.members[store.jobs.get(job).state as usize] -= 1;
        // mutant grp-done-one-deletion-early: record.is_done() => record.members.iter().sum::<u32>() <= 1
        record.is_done().then_some(LastGone(group))
    }

    /// Ends a group without members. The jobs that it has held are [released](Self::next_released) then.
    pub fn end(&mut self, LastGone(group): LastGone, store: &Store, effects: &mut Effects) -> GroupSlot {
        self.table.hide(group.0);
        let record = &self.table[group.0];
        if !record.waiting.is_empty() {
            // mutant grp-end-not-logged: removed
            effects.changes.push(Change::GroupDone(record.name(&store.bodies).as_bytes().into()));
        }
        group
    }

    /// The held job that a group releases next. There is none once the group can be [removed](Self::remove).
    pub fn next_released(&self, group: GroupSlot) -> Option<JobKey> {
        self.table[group.0].waiting.front().map(|hold| self.holds[hold].job)
    }

    /// Removes a group that is done and has no waiting jobs.
    pub fn remove(&mut self, group: GroupSlot, store: &mut Store) {
        let group = self.table.remove_hidden(group.0);
        assert!(group.is_done() && group.waiting.is_empty() && group.dependencies.is_empty());
        group.name.free(&mut store.bodies);
    }

    /// The group for which a job with these tags has to wait now.
    pub fn ahead(&self, tags_key: TagsKey, store: &Store) -> Option<GroupSlot> {
        self.find(store.jobs.tags[tags_key.0].tags(&store.bodies).aft()?, &store.bodies)
    }

    /// Adds a held job to those that wait for a group.
    pub fn wait(&mut self, job: JobKey, group: GroupSlot, store: &mut Store) {
        let tags_key = store.jobs.get(job).tags_key().expect("a held job has tags");
        let tags = &mut store.jobs.tags[tags_key.0];
        let hold = self.holds.insert(Hold { job, group, links: Links::NONE });
        tags.hold = Some(HoldSlot(hold));
        self.table[group.0].waiting.push_back(&mut self.holds, hold);
        if let Some(from) = tags.group {
            self.depend(from, group);
        }
    }

    /// Removes a held job from those that wait for its group.
    #[cold]
    pub fn stop_waiting(&mut self, job: JobKey, store: &mut Store) {
        let tags_key = store.jobs.get(job).tags_key().expect("a held job has tags");
        let tags = &mut store.jobs.tags[tags_key.0];
        let HoldSlot(hold) = tags.hold.take().expect("a held job waits for a group");
        let group = self.holds[hold].group;
        self.table[group.0].waiting.remove(&mut self.holds, hold);
        self.holds.remove(hold);
        if let Some(from) = tags.group {
            self.undepend(from, group);
        }
    }

    /// Whether a held job is to be released, because its group is done.
    pub fn is_released(&self, job: JobKey, store: &Store) -> bool {
        let hold = store.jobs.tags_of(job).and_then(|tags| tags.hold);
        hold.is_some_and(|hold| self.table[self.holds[hold.0].group.0].is_done())
    }

    /// The group that a held job waits for, and the number of its members. It has none if the job is about to be released.
    pub fn ahead_of<'a>(&self, job: JobKey, store: &'a Store) -> Option<(TubeName<'a>, u32)> {
        let HoldSlot(hold) = store.jobs.tags_of(job)?.hold?;
        let group = &self.table[self.holds[hold].group.0];
        // Bounded by JobState::COUNT: the states of a job.
        Some((group.name(&store.bodies), group.members.iter().sum()))
    }

    pub fn done<'a>(&self, store: &'a Store, effects: &'a Effects) -> impl Iterator<Item = TubeName<'a>> {
        // Bounded by its caller: an iterator, for recovery.
        effects.work.iter().filter_map(|work| match work {
            Work::FreeHeld { group } => Some(self.table[group.0].name(&store.bodies)),
            _ => None,
        })
    }

    /// Finds the groups that restored jobs wait for. Background work releases those jobs whose group is done.
    // Bounded by recovery: no client is connected.
    pub fn settle(
        &mut self,
        jobs: impl Iterator<Item = JobKey>,
        store: &mut Store,
        effects: &mut Effects,
    ) -> Vec<(JobKey, GroupSlot)> {
        let mut done: BTreeMap<Box<[u8]>, GroupSlot> = BTreeMap::new();
        let with_groups = jobs.map(|job| {
            let tags_key = store.jobs.get(job).tags_key().expect("a held job has tags");
            let group = self.ahead(tags_key, store).unwrap_or_else(|| {
                let tags = store.jobs.tags[tags_key.0].tags(&store.bodies);
                let name: Box<[u8]> = tags.aft().expect("a held job waits for a group").as_bytes().into();
                *done.entry(name).or_insert_with_key(|name| {
                    let group = self.new_group(name, &mut store.bodies);
                    GroupSlot(self.table.insert_hidden(group))
                })
            });
            (job, group)
        });
        let with_groups = with_groups.collect();
        done.into_values().for_each(|group| effects.work.push_back(Work::FreeHeld { group }));
        with_groups
    }

    pub fn stats(&self, name: TubeName<'_>, store: &Store) -> Option<GroupStats> {
        let group = &self.table[self.find(name, &store.bodies)?.0];
        Some(GroupStats { members: group.members, waiting_jobs: group.waiting.len() })
    }

    pub fn all_ahead<'a>(&self, name: TubeName<'_>, store: &'a Store) -> impl Iterator<Item = TubeName<'a>> {
        let Self { table, dependencies, .. } = self;
        let group = self.find(name, &store.bodies).map(|group| &table[group.0]);
        // Bounded by its caller: an iterator, of which `stats-group` takes GROUPS_SHOWN_MAX.
        let links = group.into_iter().flat_map(|group| group.dependencies.iter(dependencies));
        links.map(|key| table[dependencies[key].to.0].name(&store.bodies))
    }

    /// The group of this name, if it is not done.
    fn find(&self, name: TubeName<'_>, bodies: &Bodies) -> Option<GroupSlot> {
        self.table.find_name(&[name.as_bytes()], bodies).map(GroupSlot)
    }

    /// A group without members. The caller adds it to the table.
    fn new_group(&self, name: &[u8], bodies: &mut Bodies) -> Group {
        Group {
            name: Name::store(name, self.table.seed(), bodies),
            members: [0; JobState::COUNT],
            waiting: List::new(),
            dependencies: List::new(),
        }
    }

    /// Notes that a member of a group waits for another group.
    fn depend(&mut self, from: GroupSlot, to: GroupSlot) {
        let key = self.dependencies.find_word(pair(from.0, to.0)).unwrap_or_else(|| {
            let dependency = Dependency { from, to, jobs: 0, links: Links::NONE, chain: NIL };
            let key = self.dependencies.insert(dependency);
            self.table[from.0].dependencies.push_back(&mut self.dependencies, key);
            key
        });
        self.dependencies[key].jobs += 1;
    }

    /// Notes that one member fewer waits.
    fn undepend(&mut self, from: GroupSlot, to: GroupSlot) {
        let key = self.dependencies.find_word(pair(from.0, to.0)).expect("a member waits for the group");
        let dependency = &mut self.dependencies[key];
        dependency.jobs -= 1;
        if dependency.jobs == 0 {
            self.table[from.0].dependencies.remove(&mut self.dependencies, key);
            self.dependencies.remove(key);
        }
    }

    /// Asserts that groups, their members and the jobs that wait for them agree.
    // Bounded by its caller: a test.
    pub fn check(&self, store: &Store, effects: &Effects) {
        let Self { table, holds, dependencies } = self;
        table.check(table.iter().filter(|(_, group)| group.is_done()).count());
        holds.check();
        dependencies.check(0);
        let releasing = |group: GroupSlot| {
            effects
                .work
                .iter()
                .filter(|work| matches!(work, Work::FreeHeld { group: at } if *at == group))
                .count()
        };
        let (mut waiting, mut linked) = (0, 0);
        for (key, group) in table.iter() {
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
                self.find(group.name(&store.bodies), &store.bodies) == Some(GroupSlot(key)),
                !group.is_done()
            );
            let mut members = [0; JobState::COUNT];
            let mut ahead: Vec<GroupSlot> = Vec::new();
            for (job_key, job) in store.jobs.iter() {
                let Some(tags) = store.jobs.tags_of(job_key) else { continue };
                if tags.group == Some(GroupSlot(key)) {
                    members[job.state as usize] += 1;
                    ahead.extend(tags.hold.map(|hold| holds[hold.0].group));
                }
            }
            assert_eq!(
                group.members,
                members,
                "the members of {} are counted",
                group.name(&store.bodies).as_str()
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
        assert_eq!(waiting, store.totals.in_state(JobState::Held) as usize, "a held job waits for a group");
        for (key, job) in store.jobs.iter() {
            let tags = store.jobs.tags_of(key);
            let hold = tags.and_then(|tags| tags.hold);
            let is_waiting = hold.is_some_and(|hold| holds[hold.0].job == key);
            assert_eq!(is_waiting, job.state == JobState::Held, "job {} is held if it waits", job.id);
            assert_eq!(
                tags.and_then(|tags| tags.group).is_some(),
                tags.is_some_and(|tags| tags.tags(&store.bodies).grp().is_some()),
                "job {} is a member of its group",
                job.id
            );
        }
    }
}

impl Group {
    fn is_done(&self) -> bool {
        // mutant grp-buried-members-do-not-count: self.members == [0; JobState::COUNT] =>
        //     self.members.iter().sum::<u32>() == self.members[JobState::Buried as usize]
        self.members == [0; JobState::COUNT]
    }

    fn name<'a>(&self, bodies: &'a Bodies) -> TubeName<'a> {
        TubeName::checked_before(self.name.text(bodies))
    }
}

named!(Group);
intrusive!(Dependency: in lists);
intrusive!(Dependency: in tables by |link| pair(link.from.0, link.to.0));
intrusive!(Hold: in lists);
