// Two copies of each shard, each on a disk that is waited for: what both machines have after a power cut.
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/io/file.h"
#include "server/durability/storage.h"
#include "tests/server/replication/replica_fixture.h"

namespace lodestone::server {
namespace {

namespace fs = std::filesystem;

// The disk of one machine, as far as logs are written to it: knows how much of each file was synced, and can be made to
// take nothing more. Thread-safe.
class SyncedDisk {
 public:
  FileCalls Calls() {
    FileCalls calls = FileCalls::System();
    calls.fdatasync = [this](int fd) {
      MutexLock lock(&mu_);
      while (held_) {
        ++waiting_;
        changed_.NotifyAll();
        changed_.Wait(&mu_);
        --waiting_;
      }
      struct stat file;
      if (::fstat(fd, &file) != 0) return -1;
      if (::fdatasync(fd) != 0) return -1;
      synced_[file.st_ino] = static_cast<uint64_t>(file.st_size);
      return 0;
    };
    return calls;
  }
  void Hold(bool held) {
    MutexLock lock(&mu_);
    held_ = held;
    changed_.NotifyAll();
  }
  // Waits until as many syncs wait for it.
  void AwaitWaiting(size_t syncs) {
    MutexLock lock(&mu_);
    while (waiting_ < syncs) changed_.Wait(&mu_);
  }
  // Copies the folder `from` as a power cut leaves it: of its logs, what was synced.
  void CutTo(const fs::path& from, const fs::path& to) {
    MutexLock lock(&mu_);
    fs::copy(from, to, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(from)) {
      if (entry.path().extension() != ".log") continue;
      struct stat file;
      ASSERT_EQ(::stat(entry.path().c_str(), &file), 0);
      const auto synced = synced_.find(file.st_ino);
      fs::resize_file(to / fs::relative(entry.path(), from), synced == synced_.end() ? 0 : synced->second);
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<ino_t, uint64_t> synced_ ABSL_GUARDED_BY(mu_);  // Bytes, by inode.
};

// While this lives, the disk of a ps takes nothing, and all of its logs wait for that, each on a thread of this: what
// is appended to them meanwhile holds no executor up.
class HeldDisk {
 public:
  HeldDisk(Node* node, SyncedDisk* disk) : disk_(disk) {
    disk->Hold(true);
    const size_t logs = node->store->shards().executors().size();
    for (size_t log = 0; log < logs; ++log) {
      threads_.emplace_back([node, log] {
        v1::LogRecord record;
        record.set_session_opened(kWorker);
        node->store->log().LogOf(log)->Append(record, {}, nullptr, nullptr);
      });
    }
    disk->AwaitWaiting(logs);
  }
  ~HeldDisk() {
    disk_->Hold(false);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  SyncedDisk* const disk_;
  std::vector<std::thread> threads_;
};

class ReplicasPowerCutTest : public ReplicaFixture {
 protected:
  ReplicasPowerCutTest() {
    root_ = fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
  }
  ~ReplicasPowerCutTest() override {
    nodes_.clear();
    fs::remove_all(root_);
  }
  std::string DataDir(uint32_t index) const override { return (root_ / absl::StrCat(index)).string(); }
  v1::ClusterConfig::Durability durability() const override { return v1::ClusterConfig::MACHINE; }
  FileCalls CallsOf(uint32_t index) override { return disks_[index].Calls(); }

  // What a ps brings back of the shards, as their owner, after a power cut.
  std::vector<uint64_t> AfterAPowerCut(uint32_t index) {
    const fs::path cut = root_ / absl::StrCat("cut", index);
    disks_[index].CutTo(DataDir(index), cut);
    v1::Config config = nodes_[index]->config;
    config.mutable_server()->set_data_dir(cut.string());
    ManualTime time;
    Store::Options options;
    options.shards = kShards;
    options.executors = 2;
    options.time = &time;
    Store store(options);
    auto storage = Storage::Open(config, &time);
    EXPECT_TRUE(storage.ok()) << storage.status();
    if (!storage.ok()) return {};
    const absl::Status recovered = (*storage)->Recover(&store, {0, 1, 2, 3});
    EXPECT_TRUE(recovered.ok()) << recovered;
    std::vector<uint64_t> content;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      store.shards().Run(shard, [&](Shard* held) { content.push_back(ContentChecksum(held->CollectState(nullptr))); });
    }
    return content;
  }
  std::vector<uint64_t> Content(Node* node) {
    std::vector<uint64_t> content;
    for (ShardId shard = 0; shard < kShards; ++shard) content.push_back(node->checksum(shard));
    return content;
  }

  fs::path root_;
  std::array<SyncedDisk, 2> disks_;
};

TEST_F(ReplicasPowerCutTest, APushIsAcknowledgedOnlyOnceTheDisksOfBothMachinesHaveIt) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  for (const uint32_t index : {0, 1}) {
    std::future<Pushed> push;
    {
      const HeldDisk held(nodes_[index].get(), &disks_[index]);
      push = PushTo(&a(), 4 + index, 4);
      const auto same = a().replication->Verify();  // The follower has taken the update before it answers.
      EXPECT_TRUE(same.ok()) << same.status();
      EXPECT_TRUE(Waits(push)) << "it is acknowledged, and the disk of ps " << index << " does not have it";
    }
    EXPECT_TRUE(push.get().ok());
  }
}

TEST_F(ReplicasPowerCutTest, AfterBothMachinesWentDownEitherAloneHasAllThatWasAcknowledged) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  // A copy counts once the follower's disk has the state that it began with.
  const auto written = b().storage->Checkpoint("");
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 20));
  const std::vector<uint64_t> acknowledged = Content(&a());
  const HeldDisk held_a(&a(), &disks_[0]), held_b(&b(), &disks_[1]);
  std::future<Pushed> push = PushTo(&a(), 21, 21);
  for (ShardId shard = 0; shard < kShards; ++shard) ASSERT_NO_FATAL_FAILURE(AwaitVersion(&b(), shard, 21));
  EXPECT_TRUE(Waits(push));
  EXPECT_EQ(AfterAPowerCut(0), acknowledged);
  EXPECT_EQ(AfterAPowerCut(1), acknowledged);
}

}  // namespace
}  // namespace lodestone::server
