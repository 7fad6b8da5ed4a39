#include "common/wire/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace lodestone {
namespace {

constexpr char kName[] = "lodestone-values";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// Memory is reserved in steps of this many bytes.
constexpr size_t kReserveStep = 1 << 20;

// What the memory begins with.
struct MemorySecret {
  uint64_t low = 0;
  uint64_t high = 0;

  bool operator==(const MemorySecret&) const = default;
};
static_assert(sizeof(MemorySecret) <= kSharedMemoryHead);

MemorySecret SecretIn(const uint8_t* data) {
  MemorySecret secret;
  std::memcpy(&secret, data, sizeof(secret));
  return secret;
}

absl::Status Unavailable(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// A file descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Opens what the offer points at, if that is called as Make calls its memory.
absl::StatusOr<int> Open(const v1::SharedMemoryOffer& offer) {
  const std::string path = absl::StrCat("/proc/", offer.process(), "/fd/", offer.file());
  // The file as such: it is not opened, whatever it is, and what is called so stays the same file.
  const Descriptor file(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (file.fd() < 0) return Unavailable(path);
  const std::string own = absl::StrCat("/proc/self/fd/", file.fd());
  char name[64];
  const ssize_t length = readlink(own.c_str(), name, sizeof(name));
  if (length < 0) return Unavailable(own);
  if (absl::string_view(name, length) != absl::StrCat("/memfd:", kName, " (deleted)")) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no memory to share"));
  }
  const int fd = open(own.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return Unavailable(path);
  return fd;
}

// Whether `fd` is memory of this user and of that size, which cannot shrink while it is mapped.
absl::Status Check(int fd, uint64_t bytes) {
  struct stat status = {};
  struct statfs system = {};
  if (fstat(fd, &status) != 0 || fstatfs(fd, &system) != 0) return Unavailable("the memory's file");
  if (!S_ISREG(status.st_mode) || system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("the memory is of another kind");
  }
  if (status.st_uid != geteuid()) return absl::InvalidArgumentError("the memory is another user's");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || (seals & F_SEAL_WRITE) != 0) {
    return absl::InvalidArgumentError("the memory is not sealed as it should be");
  }
  if (static_cast<uint64_t>(status.st_size) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the memory has ", status.st_size, " bytes, and the offer says ", bytes));
  }
  return absl::OkStatus();
}

// The memory behind `fd`.
absl::StatusOr<uint8_t*> Map(int fd, size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Unavailable("mmap");
  return static_cast<uint8_t*>(data);
}

// Whether this process may have files that are so long: one that may not is ended when it tries.
absl::Status CheckFileSize(size_t bytes) {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return Unavailable("RLIMIT_FSIZE");
  if (limit.rlim_cur >= bytes) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("files may have ", limit.rlim_cur, " bytes (ulimit -f)"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Make(size_t bytes) {
  LODESTONE_CHECK(bytes > kSharedMemoryHead && bytes <= kSharedMemoryBytesMax);
  LODESTONE_RETURN_IF_ERROR(CheckFileSize(bytes));
  Descriptor file(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.fd() < 0) return Unavailable("memfd_create");
  if (ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0 || fcntl(file.fd(), F_ADD_SEALS, kSeals) != 0) {
    return Unavailable("a file in memory");
  }
  LODESTONE_ASSIGN_OR_RETURN(uint8_t* const data, Map(file.fd(), bytes));
  std::shared_ptr<SharedMemory> memory(new SharedMemory(file.Release(), data, bytes));
  const MemorySecret secret{DrawNonce(), DrawNonce()};
  std::memcpy(memory->data_, &secret, sizeof(secret));
  return memory;
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Attach(const v1::SharedMemoryOffer& offer) {
  if (offer.bytes() <= kSharedMemoryHead || offer.bytes() > kSharedMemoryBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("memory of ", offer.bytes(), " bytes cannot be shared"));
  }
  LODESTONE_ASSIGN_OR_RETURN(const int fd, Open(offer));
  const Descriptor file(fd);
  LODESTONE_RETURN_IF_ERROR(Check(fd, offer.bytes()));
  LODESTONE_ASSIGN_OR_RETURN(uint8_t* const data, Map(fd, offer.bytes()));
  std::shared_ptr<SharedMemory> memory(new SharedMemory(-1, data, offer.bytes()));
  if (SecretIn(memory->data_) != MemorySecret{offer.secret_low(), offer.secret_high()}) {
    return absl::InvalidArgumentError("the memory is not the one that was offered (its secret differs)");
  }
  return memory;
}

SharedMemory::~SharedMemory() {
  munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

v1::SharedMemoryOffer SharedMemory::Offer() const {
  const MemorySecret secret = SecretIn(data_);
  v1::SharedMemoryOffer offer;
  offer.set_process(static_cast<uint32_t>(getpid()));
  offer.set_file(static_cast<uint32_t>(fd_));
  offer.set_bytes(size_);
  offer.set_secret_low(secret.low);
  offer.set_secret_high(secret.high);
  return offer;
}

absl::Status SharedMemory::Reserve(size_t bytes) {
  LODESTONE_CHECK(bytes <= size_);
  MutexLock lock(&mu_);
  if (bytes <= reserved_) return absl::OkStatus();
  if (full_) return absl::ResourceExhaustedError("memory to share: there was no more before");
  const size_t end = std::min(size_, (bytes + kReserveStep - 1) / kReserveStep * kReserveStep);
  int error = 0;
  do {
    error = posix_fallocate(fd_, static_cast<off_t>(reserved_), static_cast<off_t>(end - reserved_));
  } while (error == EINTR);
  if (error != 0) {
    full_ = true;
    LODESTONE_LOG(WARN, "client", "has no more memory to share bytes={} reason={}", reserved_, std::strerror(error));
    return absl::ResourceExhaustedError(absl::StrCat("memory to share: ", std::strerror(error)));
  }
  reserved_ = end;
  return absl::OkStatus();
}

}  // namespace lodestone
