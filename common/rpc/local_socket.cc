#include "common/rpc/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/nonce.h"

namespace lodestone {
namespace {

constexpr char kPrefix[] = "lodestone-";
constexpr size_t kDigits = 16;

// Calls bind or connect with a new socket and the name. 0, or the errno of what failed.
int WithSocket(const std::string& name, int (*call)(int fd, const sockaddr* address, socklen_t size)) {
  if (!CheckLocalSocket(name).ok()) return EINVAL;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // After a zero: abstract.
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int error = call(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

std::string DrawLocalSocket() { return absl::StrCat(kPrefix, absl::Hex(DrawNonce(), absl::kZeroPad16)); }

absl::Status CheckLocalSocket(absl::string_view name) {
  absl::string_view digits = name;
  bool good = absl::ConsumePrefix(&digits, kPrefix) && digits.size() == kDigits;
  for (const char c : digits) good = good && absl::ascii_isxdigit(static_cast<unsigned char>(c));
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a local socket is called ", kPrefix, " and ", kDigits, " hexadecimal digits"));
}

absl::Status TryLocalSocket(const std::string& name) {
  const int error = WithSocket(name, bind);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the Unix socket ", name, ": ", std::strerror(error)));
}

bool IsListeningHere(const std::string& name) { return WithSocket(name, connect) == 0; }

std::string LocalSocketTarget(absl::string_view name) { return absl::StrCat("unix-abstract:", name); }

}  // namespace lodestone
