#include "common/wire/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

constexpr char kName[] = "lodestone-values";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kBytes = 100'000;  // No whole pages.

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// Both ends of a pipe.
struct Pipe {
  static std::pair<int, int> Make() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    return {fds[0], fds[1]};
  }
  explicit Pipe(std::pair<int, int> fds = Make()) : out(fds.first), in(fds.second) {}

  Descriptor out, in;
};

// A process that does `work` and then waits to be killed.
class Child {
 public:
  template <typename Work>
  explicit Child(const Work& work) : pid_(fork()) {
    if (pid_ != 0) return;
    work();
    while (true) pause();
  }
  ~Child() {
    if (pid_ > 0) Kill();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // Returns when nothing is left of it.
  void Kill() {
    EXPECT_EQ(kill(pid_, SIGKILL), 0);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << status;
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

// What a peer might offer: as memory that Make made, but for what a test changes.
struct Imitated {
  const char* name = kName;
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  size_t bytes = kBytes;
  int seals = kSeals;
};

class Imitation {
 public:
  explicit Imitation(const Imitated& imitated)
      : file_(memfd_create(imitated.name, imitated.flags)), bytes_(imitated.bytes) {
    EXPECT_EQ(ftruncate(file_.get(), static_cast<off_t>(bytes_)), 0) << std::strerror(errno);
    const uint64_t secret[] = {kLow, kHigh};
    EXPECT_EQ(pwrite(file_.get(), secret, sizeof(secret), 0), static_cast<ssize_t>(sizeof(secret)));
    if (imitated.seals != 0) {
      EXPECT_EQ(fcntl(file_.get(), F_ADD_SEALS, imitated.seals), 0) << std::strerror(errno);
    }
  }

  int fd() const { return file_.get(); }
  v1::SharedMemoryOffer Offer() const {
    v1::SharedMemoryOffer offer;
    offer.set_process(static_cast<uint32_t>(getpid()));
    offer.set_file(static_cast<uint32_t>(file_.get()));
    offer.set_bytes(bytes_);
    offer.set_secret_low(kLow);
    offer.set_secret_high(kHigh);
    return offer;
  }

 private:
  static constexpr uint64_t kLow = 0x0123456789abcdef;
  static constexpr uint64_t kHigh = 0xfedcba9876543210;

  const Descriptor file_;
  const size_t bytes_;
};

std::string PathOf(uint32_t file) { return absl::StrCat("/proc/self/fd/", file); }

size_t CountDescriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// How much of this process' address space is memory to share, in pieces.
size_t CountMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(kName) != std::string::npos;
  return count;
}

struct stat StatOf(const SharedMemory& memory) {
  struct stat status = {};
  EXPECT_EQ(fstat(static_cast<int>(memory.Offer().file()), &status), 0);
  return status;
}

size_t MachineBytesOf(const SharedMemory& memory) { return static_cast<size_t>(StatOf(memory).st_blocks) * 512; }

// What a test writes at `i`.
uint8_t ByteAt(size_t i, uint8_t by) { return static_cast<uint8_t>(i * 7 + i / 256 + by); }

void Fill(size_t begin, size_t end, uint8_t by, SharedMemory* memory) {
  for (size_t i = begin; i < end; ++i) memory->data()[i] = ByteAt(i, by);
}

bool Holds(size_t begin, size_t end, uint8_t by, const SharedMemory& memory) {
  for (size_t i = begin; i < end; ++i) {
    if (memory.data()[i] != ByteAt(i, by)) return false;
  }
  return true;
}

// Whatever a test does, nothing stays behind.
class SharedMemoryTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(CountDescriptors(), descriptors_);
    EXPECT_EQ(CountMappings(), 0);
  }

  static std::shared_ptr<SharedMemory> Make(size_t bytes) {
    auto memory = SharedMemory::Make(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }

  static void ExpectRefused(const v1::SharedMemoryOffer& offer, absl::StatusCode code, const std::string& why) {
    const size_t descriptors = CountDescriptors();
    const size_t mappings = CountMappings();
    const absl::Status status = SharedMemory::Attach(offer).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(CountDescriptors(), descriptors);
    EXPECT_EQ(CountMappings(), mappings);
  }
  static void ExpectInvalid(const v1::SharedMemoryOffer& offer, const std::string& why) {
    ExpectRefused(offer, absl::StatusCode::kInvalidArgument, why);
  }

 private:
  const size_t descriptors_ = CountDescriptors();
};

TEST_F(SharedMemoryTest, WhatOneWritesTheOtherReads) {
  const auto made = Make(kBytes);
  ASSERT_NE(made, nullptr);
  const auto attached = SharedMemory::Attach(made->Offer());
  ASSERT_TRUE(attached.ok()) << attached.status();
  ASSERT_EQ((*attached)->size(), kBytes);
  ASSERT_NE((*attached)->data(), made->data());
  Fill(kSharedMemoryHead, kBytes, 1, made.get());
  EXPECT_TRUE(Holds(kSharedMemoryHead, kBytes, 1, **attached));
  Fill(kSharedMemoryHead, kBytes, 2, attached->get());
  EXPECT_TRUE(Holds(kSharedMemoryHead, kBytes, 2, *made));
}

TEST_F(SharedMemoryTest, WhatAnotherProcessWritesIsRead) {
  const auto made = Make(kBytes);
  ASSERT_NE(made, nullptr);
  const auto attached = SharedMemory::Attach(made->Offer());
  ASSERT_TRUE(attached.ok()) << attached.status();
  const size_t middle = kBytes / 2;
  Fill(kSharedMemoryHead, middle, 1, made.get());
  const pid_t child = fork();
  if (child == 0) {
    const bool read = Holds(kSharedMemoryHead, middle, 1, **attached);
    Fill(middle, kBytes, 2, attached->get());
    _exit(read ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "it did not read what we wrote";
  EXPECT_TRUE(Holds(kSharedMemoryHead, middle, 1, *made));
  EXPECT_TRUE(Holds(middle, kBytes, 2, *made));
}

TEST_F(SharedMemoryTest, OutlivesTheProcessThatMadeIt) {
  Pipe pipe;
  Child child([&] {
    auto memory = SharedMemory::Make(kBytes);
    if (!memory.ok()) _exit(1);
    Fill(kSharedMemoryHead, kBytes / 2, 1, memory->get());
    const std::string offer = (*memory)->Offer().SerializeAsString();
    if (write(pipe.in.get(), offer.data(), offer.size()) != static_cast<ssize_t>(offer.size())) _exit(1);
    pipe.in.Close();
    while (true) pause();  // The memory is to live as long as the process.
  });
  ASSERT_GT(child.pid(), 0);
  pipe.in.Close();
  std::string bytes;
  char some[64];
  for (ssize_t size = 0; (size = read(pipe.out.get(), some, sizeof(some))) > 0;) bytes.append(some, size);
  v1::SharedMemoryOffer offer;
  ASSERT_TRUE(offer.ParseFromString(bytes));
  EXPECT_EQ(offer.process(), static_cast<uint32_t>(child.pid()));
  const auto attached = SharedMemory::Attach(offer);
  ASSERT_TRUE(attached.ok()) << attached.status();
  child.Kill();
  ASSERT_EQ((*attached)->size(), kBytes);
  EXPECT_TRUE(Holds(kSharedMemoryHead, kBytes / 2, 1, **attached));
  Fill(0, kBytes, 2, attached->get());
  EXPECT_TRUE(Holds(0, kBytes, 2, **attached));
}

TEST_F(SharedMemoryTest, ItsSizeIsFixedEvenForWhoMadeIt) {
  const auto memory = Make(kBytes);
  ASSERT_NE(memory, nullptr);
  const Descriptor file(open(PathOf(memory->Offer().file()).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_GE(file.get(), 0) << std::strerror(errno);
  for (const size_t bytes : {size_t{0}, kSharedMemoryHead, kBytes - 1, kBytes + 1, 2 * kBytes}) {
    errno = 0;
    EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), -1) << bytes;
    EXPECT_EQ(errno, EPERM) << bytes;
  }
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "who attaches it could not write any more";
  EXPECT_EQ(StatOf(*memory).st_size, static_cast<off_t>(kBytes));
}

TEST_F(SharedMemoryTest, HasNoNameAndGoesWithTheLastReference) {
  auto memory = Make(kBytes);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(StatOf(*memory).st_nlink, 0u) << "a folder has it";
  const int file = static_cast<int>(memory->Offer().file());
  auto other = memory;
  memory.reset();
  EXPECT_GE(fcntl(file, F_GETFD), 0);
  EXPECT_EQ(fcntl(file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC) << "a program that is started would have it too";
  other.reset();
  EXPECT_EQ(fcntl(file, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(SharedMemoryTest, BeginsWithASecretOfItsOwn) {
  const auto memory = Make(kBytes);
  const auto other = Make(kBytes);
  ASSERT_TRUE(memory != nullptr && other != nullptr);
  const v1::SharedMemoryOffer offer = memory->Offer();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(memory->data()[i], static_cast<uint8_t>(offer.secret_low() >> (8 * i)));
    EXPECT_EQ(memory->data()[8 + i], static_cast<uint8_t>(offer.secret_high() >> (8 * i)));
  }
  EXPECT_NE(offer.secret_low(), offer.secret_high());
  EXPECT_NE(offer.secret_low(), other->Offer().secret_low());
  EXPECT_NE(offer.secret_high(), other->Offer().secret_high());
}

TEST_F(SharedMemoryTest, TheSmallestAndTheLargestCanBeShared) {
  for (const size_t bytes : {kSharedMemoryHead + 1, kSharedMemoryBytesMax}) {
    const auto made = Make(bytes);
    ASSERT_NE(made, nullptr);
    ASSERT_EQ(made->size(), bytes);
    const auto attached = SharedMemory::Attach(made->Offer());
    ASSERT_TRUE(attached.ok()) << attached.status();
    made->data()[bytes - 1] = 77;
    EXPECT_EQ((*attached)->data()[bytes - 1], 77);
  }
}

TEST_F(SharedMemoryTest, TakesNoMoreOfTheMachineThanIsReserved) {
  constexpr size_t kReserved = 8 << 20;
  const auto memory = Make(kSharedMemoryBytesMax);
  ASSERT_NE(memory, nullptr);
  // Reserving goes by steps, of which the machine may make huge pages.
  EXPECT_LE(MachineBytesOf(*memory), kSharedMemoryBytesMax / 16);
  Fill(kSharedMemoryHead, 2 * kSharedMemoryHead, 1, memory.get());
  ASSERT_TRUE(memory->Reserve(kReserved).ok());
  const size_t reserved = MachineBytesOf(*memory);
  EXPECT_GE(reserved, kReserved);
  EXPECT_LE(reserved, 2 * kReserved);
  for (const size_t again : {size_t{0}, size_t{1}, kReserved / 2, kReserved}) {
    ASSERT_TRUE(memory->Reserve(again).ok());
    EXPECT_EQ(MachineBytesOf(*memory), reserved) << again;
  }
  ASSERT_TRUE(memory->Reserve(memory->size()).ok());
  EXPECT_GE(MachineBytesOf(*memory), memory->size());
  EXPECT_TRUE(Holds(kSharedMemoryHead, 2 * kSharedMemoryHead, 1, *memory));
  EXPECT_TRUE(SharedMemory::Attach(memory->Offer()).ok());
}

TEST_F(SharedMemoryTest, RefusesWhatItCannotReach) {
  const auto memory = Make(kBytes);
  ASSERT_NE(memory, nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  v1::SharedMemoryOffer offer = memory->Offer();
  offer.set_process(static_cast<uint32_t>(child));
  ExpectRefused(offer, absl::StatusCode::kUnavailable, absl::StrCat("/proc/", child, "/fd/", offer.file()));
  for (const uint32_t file : {uint32_t{1'000'000}, UINT32_MAX}) {
    offer = memory->Offer();
    offer.set_file(file);
    ExpectRefused(offer, absl::StatusCode::kUnavailable, absl::StrCat("/proc/", getpid(), "/fd/", file));
  }
}

TEST_F(SharedMemoryTest, RefusesFilesThatAreNoMemory) {
  const std::string path = ::testing::TempDir() + "/" + kName;
  const Descriptor ordinary(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_GE(ordinary.get(), 0) << std::strerror(errno);
  ASSERT_EQ(ftruncate(ordinary.get(), kBytes), 0);
  const Pipe pipe;
  const Descriptor device(open("/dev/zero", O_RDWR | O_CLOEXEC));
  v1::SharedMemoryOffer offer = Imitation({}).Offer();
  for (const Descriptor* file : {&ordinary, &pipe.out, &pipe.in, &device}) {
    offer.set_file(static_cast<uint32_t>(file->get()));
    ExpectInvalid(offer, absl::StrCat("/fd/", offer.file(), " is no memory to share"));
  }
  unlink(path.c_str());
}

// The rest of the tests change one thing of this one.
TEST_F(SharedMemoryTest, AnImitationIsAsGoodAsWhatItMakes) {
  const Imitation imitation({});
  const auto attached = SharedMemory::Attach(imitation.Offer());
  EXPECT_TRUE(attached.ok()) << attached.status();
}

TEST_F(SharedMemoryTest, RefusesMemoryOfAnotherName) {
  for (const char* const name : {"", "lodestone-credentials", "lodestone-value", "x/memfd:lodestone-values"}) {
    const Imitation imitation({.name = name});
    ExpectInvalid(imitation.Offer(), "is no memory to share");
  }
}

TEST_F(SharedMemoryTest, RefusesMemoryWithoutEveryOneOfItsSeals) {
  for (const int seals : {0, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_SEAL, F_SEAL_GROW | F_SEAL_SEAL}) {
    SCOPED_TRACE(seals);
    const Imitation imitation({.seals = seals});
    ExpectInvalid(imitation.Offer(), "not sealed as it should be");
  }
  const Imitation unsealable({.flags = MFD_CLOEXEC, .seals = 0});
  ExpectInvalid(unsealable.Offer(), "not sealed as it should be");
}

TEST_F(SharedMemoryTest, RefusesMemoryThatNobodyMayWrite) {
  const Imitation imitation({.seals = kSeals | F_SEAL_WRITE});
  ExpectInvalid(imitation.Offer(), "not sealed as it should be");
}

TEST_F(SharedMemoryTest, RefusesMemoryOfAnotherSizeThanOffered) {
  const Imitation imitation({});
  v1::SharedMemoryOffer offer = imitation.Offer();
  for (const size_t bytes : {kSharedMemoryHead + 1, kBytes - 1, kBytes + 1, kSharedMemoryBytesMax}) {
    offer.set_bytes(bytes);
    ExpectInvalid(offer, absl::StrCat("the memory has ", kBytes, " bytes, and the offer says ", bytes));
  }
}

TEST_F(SharedMemoryTest, RefusesSizesOutOfItsLimits) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kSharedMemoryHead, kSharedMemoryBytesMax + 1}) {
    const Imitation imitation({.bytes = std::max(bytes, sizeof(uint64_t[2]))});
    v1::SharedMemoryOffer offer = imitation.Offer();
    offer.set_bytes(bytes);
    ExpectInvalid(offer, absl::StrCat("memory of ", bytes, " bytes cannot be shared"));
  }
  v1::SharedMemoryOffer offer = Imitation({}).Offer();
  offer.set_bytes(UINT64_MAX);
  ExpectInvalid(offer, "cannot be shared");
}

TEST_F(SharedMemoryTest, RefusesASecretWithOneWrongBit) {
  const auto memory = Make(kBytes);
  ASSERT_NE(memory, nullptr);
  for (int bit = 0; bit < 64; ++bit) {
    SCOPED_TRACE(bit);
    v1::SharedMemoryOffer offer = memory->Offer();
    offer.set_secret_low(offer.secret_low() ^ uint64_t{1} << bit);
    ExpectInvalid(offer, "not the one that was offered");
    offer = memory->Offer();
    offer.set_secret_high(offer.secret_high() ^ uint64_t{1} << bit);
    ExpectInvalid(offer, "not the one that was offered");
  }
  EXPECT_TRUE(SharedMemory::Attach(memory->Offer()).ok());
}

// A huge page that the machine has run out of ends the process that touches it.
TEST_F(SharedMemoryTest, RefusesMemoryOfAnotherUser) {
  const Imitation memory({});
  if (fchown(memory.fd(), geteuid() + 1, -1) != 0) GTEST_SKIP() << "only root can give files away";
  ExpectInvalid(memory.Offer(), "another user's");
}

TEST_F(SharedMemoryTest, IsNotMadeWhereFilesMayNotBeSoLong) {
  struct rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlim_t before = std::exchange(limit.rlim_cur, kBytes - 1);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = SharedMemory::Make(kBytes).status();
  limit.rlim_cur = before;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -f"));
  EXPECT_TRUE(SharedMemory::Make(kBytes).ok());
}

TEST_F(SharedMemoryTest, RefusesHugePages) {
  constexpr size_t kHugeBytes = 2 << 20;
  const Descriptor file(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (file.get() < 0 || ftruncate(file.get(), kHugeBytes) != 0 || fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    GTEST_SKIP() << "this system gives no huge pages: " << std::strerror(errno);
  }
  v1::SharedMemoryOffer offer = Imitation({}).Offer();
  offer.set_file(static_cast<uint32_t>(file.get()));
  offer.set_bytes(kHugeBytes);
  ExpectInvalid(offer, "of another kind");
}

}  // namespace
}  // namespace lodestone
