#include "common/telemetry/wait_graph.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"

namespace lodestone {
namespace {

using v1::WaitTarget;

// Heartbeats of workers come each second at least; those of servers every three.
constexpr double kWorkerSilentSeconds = 3;
constexpr double kServerSilentSeconds = 8;
constexpr double kSlowWorkerRatio = 0.5;
constexpr double kSlowServerRatio = 2;
constexpr double kSlowPushSecondsMin = 1e-3;  // More than the others', or it is not worth a word.
constexpr int kNumbersNamedMax = 2;           // Shards and batches.

std::string NameOf(WaitTarget::Kind kind, uint32_t index) {
  return absl::StrCat(kind == WaitTarget::WORKER ? "worker " : "ps ", index);
}

// "compute 88 %, pull 9 %"; empty: it has no stages yet.
std::string SharesOf(const v1::MemberStatus& member) {
  double all = 0;
  for (const v1::StageTime& stage : member.stages()) all += stage.seconds();
  std::vector<std::string> shares;
  for (const v1::StageTime& stage : member.stages()) {
    if (all > 0) shares.push_back(absl::StrFormat("%s %.0f %%", stage.stage(), 100 * stage.seconds() / all));
  }
  return absl::StrJoin(shares, ", ");
}

// "3", "3 and 5", "3, 5 and 2 more".
template <typename Numbers>
std::string NamedSome(const Numbers& numbers) {
  std::vector<std::string> named;
  for (int i = 0; i < std::min(numbers.size(), kNumbersNamedMax); ++i) named.push_back(absl::StrCat(numbers.Get(i)));
  const int more = numbers.size() - kNumbersNamedMax;
  return absl::StrCat(absl::StrJoin(named, more > 0 ? ", " : " and "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

// "batch 2 of step 40".
std::string BatchesText(const WaitTarget& target) {
  return absl::StrCat(target.batches_size() == 1 ? "batch " : "batches ", NamedSome(target.batches()), " of step ",
                      target.step());
}

std::string ShardsText(const WaitTarget& target, const v1::WaitStatus* met) {
  for (const uint32_t shard : met == nullptr ? google::protobuf::RepeatedField<uint32_t>() : met->shards()) {
    if (std::binary_search(target.shards().begin(), target.shards().end(), shard)) return absl::StrCat("shard ", shard);
  }
  if (target.shards_size() == 1) return absl::StrCat("shard ", target.shards(0));
  return absl::StrCat("shards ", NamedSome(target.shards()));
}

std::string ClockText(uint64_t clock) {
  const bool is_end = clock == std::numeric_limits<uint64_t>::max();
  return is_end ? "the end of the training" : absl::StrCat("clock ", clock);
}

// What a wait is for, in words, where it is for no process.
std::string ThingText(const v1::WaitStatus& wait) {
  const WaitTarget::Kind kind = wait.targets().empty() ? WaitTarget::UNKNOWN : wait.targets(0).kind();
  std::string text;
  if (kind == WaitTarget::DISK) text = "its disk: ";
  if (kind == WaitTarget::MEMORY) text = "its memory: ";
  if (kind == WaitTarget::PROCESSOR) text = "its processor: ";
  if (kind == WaitTarget::OPERATOR) text = "an operator: ";
  if (kind == WaitTarget::CONTRIBUTION) {
    text = absl::StrCat(BatchesText(wait.targets(0)), ", which no worker has leased: ");
  }
  absl::StrAppend(&text, wait.what());
  if (wait.seconds() > 0) absl::StrAppendFormat(&text, ", since %.1f s", wait.seconds());
  return text;
}

// "push 12", or nothing where the process itself waits.
std::string CallText(const v1::WaitStatus& wait) {
  return wait.call().empty() || wait.sequence() == 0 ? wait.call() : absl::StrCat(wait.call(), " ", wait.sequence());
}

// "which waits for " or "whose push 12 waits for ".
std::string Relative(const v1::WaitStatus& wait) {
  return wait.call().empty() ? "which waits for " : absl::StrCat("whose ", CallText(wait), " waits for ");
}

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The median of the others' values, for each.
std::vector<double> MediansOfOthers(const std::vector<double>& values) {
  std::vector<double> medians;
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<double> others = values;
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    medians.push_back(MedianOf(std::move(others)));
  }
  return medians;
}

void AddSlowWorkers(const v1::ClusterStatus& cluster, std::vector<v1::SlowMember>* slow) {
  std::vector<const v1::MemberStatus*> trains;
  std::vector<double> rates;
  for (const v1::MemberStatus& worker : cluster.workers()) {
    if (!worker.alive() || worker.progress().phase() != v1::PHASE_TRAINING || worker.progress().clock() == 0) continue;
    trains.push_back(&worker);
    rates.push_back(worker.samples_per_second());
  }
  if (trains.size() < 2) return;
  const std::vector<double> medians = MediansOfOthers(rates);
  for (size_t i = 0; i < trains.size(); ++i) {
    if (rates[i] >= kSlowWorkerRatio * medians[i]) continue;
    v1::SlowMember& member = slow->emplace_back();
    member.set_role(v1::ROLE_WORKER);
    member.set_index(trains[i]->index());
    member.set_ratio(rates[i] / medians[i]);
    const std::string shares = SharesOf(*trains[i]);
    member.set_text(absl::StrFormat("worker %d trains at %.0f samples/s, %.2f of the others' median%s",
                                    trains[i]->index(), rates[i], member.ratio(),
                                    shares.empty() ? "" : absl::StrCat(": ", shares)));
  }
}

void AddSlowServers(const v1::ClusterStatus& cluster, std::vector<v1::SlowMember>* slow) {
  std::vector<const v1::MemberStatus*> push;
  std::vector<double> seconds;
  for (const v1::MemberStatus& server : cluster.servers()) {
    double all = 0;
    for (const v1::StageTime& stage : server.stages()) all += stage.seconds();
    if (!server.alive() || all == 0 || server.server().pushes_per_second() <= 0) continue;
    push.push_back(&server);
    seconds.push_back(all / server.server().pushes_per_second());
  }
  if (push.size() < 2) return;
  const std::vector<double> medians = MediansOfOthers(seconds);
  for (size_t i = 0; i < push.size(); ++i) {
    if (seconds[i] <= kSlowServerRatio * medians[i] || seconds[i] < medians[i] + kSlowPushSecondsMin) continue;
    v1::SlowMember& member = slow->emplace_back();
    member.set_role(v1::ROLE_SERVER);
    member.set_index(push[i]->index());
    member.set_ratio(seconds[i] / medians[i]);
    member.set_text(absl::StrFormat("a push takes %.1f ms on ps %d, %.1f x the others' median: %s", 1000 * seconds[i],
                                    push[i]->index(), member.ratio(), SharesOf(*push[i])));
  }
}

}  // namespace

WaitGraph::WaitGraph(const v1::ClusterStatus* cluster, std::optional<uint32_t> coordinator)
    : coordinator_(coordinator) {
  const v1::RangeState& ranges = cluster->ranges();
  const uint32_t step_batches = ranges.plan().step_batches();
  std::map<uint64_t, uint32_t> workers;  // By incarnation: the index.
  for (const v1::MemberStatus& worker : cluster->workers()) workers[worker.incarnation()] = worker.index();
  for (const v1::RangeLease& lease : ranges.open()) {
    const auto holder = workers.find(lease.holder());
    if (step_batches == 0 || holder == workers.end()) continue;
    contributors_[{lease.step(), static_cast<uint32_t>(lease.first_batch() % step_batches)}] = holder->second;
  }
  const auto add = [this](const Process& process, const auto& waits) {
    for (const v1::WaitStatus& wait : waits) {
      if (!wait.background() && !wait.has_waiter()) Insert(process, wait);
    }
  };
  for (const v1::MemberStatus& worker : cluster->workers()) {
    const Process process{WaitTarget::WORKER, worker.index()};
    members_[process] = &worker;
    if (!worker.alive()) continue;
    add(process, worker.progress().waits());
    if (!worker.progress().waits().empty() || worker.progress().waiting_for().empty()) continue;
    waits_[process].emplace_back().set_what(worker.progress().waiting_for());  // Of a version that says no more.
  }
  for (const v1::MemberStatus& server : cluster->servers()) {
    const Process process{WaitTarget::SERVER, server.index()};
    members_[process] = &server;
    if (server.alive()) add(process, server.server().waits());
  }
}

void WaitGraph::Insert(const Process& process, const v1::WaitStatus& wait) {
  v1::WaitStatus& added = waits_[process].emplace_back(wait);
  NameContributors(&added);
}

void WaitGraph::NameContributors(v1::WaitStatus* wait) const {
  std::map<uint32_t, WaitTarget> workers;  // By index.
  std::vector<WaitTarget> others;
  for (const WaitTarget& target : wait->targets()) {
    if (target.kind() != WaitTarget::CONTRIBUTION) {
      others.push_back(target);
      continue;
    }
    WaitTarget rest = target;
    rest.clear_batches();
    for (const uint32_t batch : target.batches()) {
      const auto contributor = contributors_.find({target.step(), batch});
      if (contributor == contributors_.end()) {
        rest.add_batches(batch);
        continue;
      }
      WaitTarget& worker = workers[contributor->second];
      worker.set_kind(WaitTarget::WORKER);
      worker.set_index(contributor->second);
      worker.set_step(target.step());
      worker.add_batches(batch);
    }
    if (rest.batches_size() > 0) others.push_back(std::move(rest));
  }
  wait->clear_targets();
  for (auto& [index, worker] : workers) *wait->add_targets() = std::move(worker);
  for (WaitTarget& target : others) *wait->add_targets() = std::move(target);
}

void WaitGraph::Add(const v1::WaitStatus& wait) {
  const std::optional<Process> waiter = wait.has_waiter() ? ProcessOf(wait.waiter()) : std::nullopt;
  if (!waiter.has_value() || wait.background()) return;
  std::vector<v1::WaitStatus>& waits = waits_[*waiter];
  std::erase_if(waits, [&wait](const v1::WaitStatus& own) {
    const auto same = [](const WaitTarget& a, const WaitTarget& b) {
      return a.kind() == b.kind() && a.index() == b.index() && a.clock() == b.clock();
    };
    return !own.targets().empty() && !wait.targets().empty() && same(own.targets(0), wait.targets(0));
  });
  Insert(*waiter, wait);
}

const v1::MemberStatus* WaitGraph::Find(const Process& process) const {
  const auto found = members_.find(process);
  return found == members_.end() ? nullptr : found->second;
}

std::optional<WaitGraph::Process> WaitGraph::ProcessOf(const WaitTarget& target) const {
  switch (target.kind()) {
    case WaitTarget::WORKER:
    case WaitTarget::SERVER:
      return Process{target.kind(), target.index()};
    case WaitTarget::COORDINATOR:
      if (coordinator_.has_value()) return Process{WaitTarget::SERVER, *coordinator_};
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

std::string WaitGraph::WhySilent(const Process& process) const {
  const v1::MemberStatus* const member = Find(process);
  const bool is_server = process.first == WaitTarget::SERVER;
  if (member == nullptr) return "has not joined";
  if (member->left()) return "has left";
  const std::string heard = absl::StrFormat("last heard of %.1f s ago", member->last_contact_seconds());
  if (!member->alive()) return absl::StrCat("is dead, ", heard);
  const auto asked = is_server ? answered_.find(process.second) : answered_.end();
  if (asked != answered_.end()) return asked->second ? "" : absl::StrCat("does not answer, ", heard);
  if (member->last_contact_seconds() < (is_server ? kServerSilentSeconds : kWorkerSilentSeconds)) return "";
  return absl::StrCat("is silent, ", heard);
}

const v1::WaitStatus* WaitGraph::WaitMetBy(const Process& process, const WaitTarget& call) const {
  const auto found = waits_.find(process);
  if (found == waits_.end()) return nullptr;
  // Waits of the very shard before those of all shards, what has a target before mere words, then the longest.
  const auto rank = [&call](const v1::WaitStatus& wait) {
    const bool of_shard = std::any_of(wait.shards().begin(), wait.shards().end(), [&call](uint32_t shard) {
      return std::binary_search(call.shards().begin(), call.shards().end(), shard);
    });
    return std::tuple(of_shard, !wait.targets().empty(), wait.seconds());
  };
  const v1::WaitStatus* met = nullptr;
  for (const v1::WaitStatus& wait : found->second) {
    if (!call.shards().empty() && !wait.shards().empty() && !std::get<0>(rank(wait))) continue;  // It is of others.
    if (met == nullptr || rank(wait) > rank(*met)) met = &wait;
  }
  return met;
}

const WaitTarget* WaitGraph::Choose(const v1::WaitStatus& wait) const {
  const WaitTarget* chosen = nullptr;
  int best = 0;
  for (const WaitTarget& target : wait.targets()) {
    const std::optional<Process> process = ProcessOf(target);
    if (!process.has_value()) continue;
    const int rank = !WhySilent(*process).empty() ? 3 : WaitMetBy(*process, target) != nullptr ? 2 : 1;
    if (rank > best) chosen = &target;
    best = std::max(best, rank);
  }
  return chosen;
}

void WaitGraph::EndAt(const Process& process, const v1::WaitStatus& last, v1::WaitChain* chain) const {
  const v1::MemberStatus& member = *Find(process);
  std::string does;
  if (process.first == WaitTarget::WORKER) {
    const v1::Phase phase = member.progress().phase();
    if (phase == v1::PHASE_LOADING) does = "reads its data";
    if (phase == v1::PHASE_EVALUATING) does = "evaluates";
    if (phase == v1::PHASE_TRAINING) {
      const std::string shares = SharesOf(member);
      does = absl::StrFormat("trains at %.0f samples/s and is at clock %d%s", member.samples_per_second(),
                             member.progress().clock(), shares.empty() ? "" : absl::StrCat(" (", shares, ")"));
    }
  }
  if (!does.empty()) {
    chain->set_root(v1::WaitChain::ROOT_TRAINS);
    absl::StrAppend(chain->mutable_text(), ", which ", does);
    return;
  }
  chain->set_root(v1::WaitChain::ROOT_UNKNOWN);
  const bool of_call = !last.call().empty();
  absl::StrAppend(chain->mutable_text(), ", of which no wait is known",
                  of_call ? " (the message or its answer may be on its way)" : "", last.what().empty() ? "" : ": ",
                  last.what());
}

bool WaitGraph::WereAtOnce(const v1::WaitChain& chain, int first) const {
  double oldest_seconds = 0, shortest_seconds = std::numeric_limits<double>::infinity();
  for (int i = first; i < chain.links_size(); ++i) {
    const v1::WaitStatus& link = chain.links(i);
    const bool is_server = link.waiter().kind() == WaitTarget::SERVER;
    const bool asked = is_server && answered_.contains(link.waiter().index());
    const double age_seconds = asked ? 0 : is_server ? kServerSilentSeconds : kWorkerSilentSeconds;
    oldest_seconds = std::max(oldest_seconds, age_seconds);
    shortest_seconds = std::min(shortest_seconds, link.seconds());
  }
  return shortest_seconds >= oldest_seconds;
}

v1::WaitChain WaitGraph::Follow(const Process& first, const v1::WaitStatus& wait,
                                std::set<const v1::WaitStatus*>* told) const {
  v1::WaitChain chain;
  std::vector<Process> path;
  std::string& text = *chain.mutable_text();
  const v1::WaitStatus* link = &wait;
  Process at = first;
  text = absl::StrCat(NameOf(first.first, first.second),
                      link->call().empty() ? "" : absl::StrCat("'s ", CallText(*link)), " waits for ");
  while (true) {
    v1::WaitStatus* const added = chain.add_links();
    *added = *link;
    added->mutable_waiter()->set_kind(at.first);
    added->mutable_waiter()->set_index(at.second);
    path.push_back(at);
    told->insert(link);
    const WaitTarget* const target = Choose(*link);
    if (target == nullptr) {
      absl::StrAppend(&text, ThingText(*link));
      chain.set_root(v1::WaitChain::ROOT_THING);
      return chain;
    }
    at = *ProcessOf(*target);
    const std::string silent = WhySilent(at);
    const v1::WaitStatus* const next = silent.empty() ? WaitMetBy(at, *target) : nullptr;
    if (target->kind() == WaitTarget::COORDINATOR) text += "the coordinator on ";
    if (target->clock() > 0) absl::StrAppend(&text, ClockText(target->clock()), " of ");
    if (!target->batches().empty()) absl::StrAppend(&text, BatchesText(*target), " of ");
    if (!target->shards().empty()) absl::StrAppend(&text, ShardsText(*target, next), " on ");
    absl::StrAppend(&text, NameOf(at.first, at.second));
    if (link->targets_size() > 1) absl::StrAppend(&text, " (and of ", link->targets_size() - 1, " more)");
    if (!silent.empty()) {
      absl::StrAppend(&text, ", which ", silent);
      chain.set_root(v1::WaitChain::ROOT_SILENT);
      return chain;
    }
    if (const auto before = std::find(path.begin(), path.end(), at); before != path.end()) {
      const bool proven = WereAtOnce(chain, static_cast<int>(before - path.begin()));
      absl::StrAppend(&text, proven ? ": they wait for one another, a cycle"
                                    : ": by turns, or for one another; not all of these waits are long enough to tell");
      chain.set_root(proven ? v1::WaitChain::ROOT_CYCLE : v1::WaitChain::ROOT_UNKNOWN);
      return chain;
    }
    if (next == nullptr) {
      EndAt(at, *link, &chain);
      return chain;
    }
    absl::StrAppend(&text, ", ", Relative(*next));
    link = next;
  }
}

std::vector<v1::WaitChain> WaitGraph::Chains() const {
  std::set<Process> awaited;
  for (const auto& [process, waits] : waits_) {
    for (const v1::WaitStatus& wait : waits) {
      for (const WaitTarget& target : wait.targets()) {
        const std::optional<Process> on = ProcessOf(target);
        if (on.has_value() && *on != process) awaited.insert(*on);
      }
    }
  }
  std::vector<v1::WaitChain> chains;
  std::map<std::string, size_t> chain_of;  // By what follows the first process's name.
  std::set<const v1::WaitStatus*> told;    // Those that chains go through.
  const auto begin_at = [&](const Process& process, const v1::WaitStatus& wait) {
    v1::WaitChain chain = Follow(process, wait, &told);
    const std::string rest = absl::StrCat(wait.call(), chain.text().substr(chain.text().find(" waits for ")));
    const auto [known, is_new] = chain_of.try_emplace(rest, chains.size());
    if (is_new) return chains.push_back(std::move(chain));
    v1::WaitChain& first = chains[known->second];
    const std::string name = NameOf(process.first, process.second);
    const WaitTarget& waiter = first.links(0).waiter();
    const bool own = waiter.kind() == process.first && waiter.index() == process.second;
    if (!own && !std::count(first.likewise().begin(), first.likewise().end(), name)) first.add_likewise(name);
  };
  for (const auto& [process, waits] : waits_) {
    if (awaited.contains(process)) continue;
    for (const v1::WaitStatus& wait : waits) begin_at(process, wait);
  }
  for (const auto& [process, waits] : waits_) {  // Cycles, and what lies beside the way of those before.
    for (const v1::WaitStatus& wait : waits) {
      if (!told.contains(&wait)) begin_at(process, wait);
    }
  }
  std::stable_sort(chains.begin(), chains.end(),
                   [](const auto& a, const auto& b) { return a.links(0).seconds() > b.links(0).seconds(); });
  if (chains.size() > limits::kWaitChainsMax) chains.resize(limits::kWaitChainsMax);
  return chains;
}

std::vector<v1::SlowMember> SlowMembersOf(const v1::ClusterStatus& cluster) {
  std::vector<v1::SlowMember> slow;
  AddSlowWorkers(cluster, &slow);
  AddSlowServers(cluster, &slow);
  return slow;
}

void ExplainWaits(v1::StatusResponse* status) {
  if (!status->has_cluster()) return;
  v1::ClusterStatus* const cluster = status->mutable_cluster();
  WaitGraph graph(cluster, status->server().index());
  for (const v1::WaitStatus& wait : status->waits()) graph.Add(wait);
  std::vector<v1::WaitChain> chains = graph.Chains();
  const std::vector<v1::SlowMember> slow = SlowMembersOf(*cluster);
  cluster->mutable_why()->Assign(chains.begin(), chains.end());
  cluster->mutable_slow()->Assign(slow.begin(), slow.end());
}

}  // namespace lodestone
