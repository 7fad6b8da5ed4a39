#include "tests/chaos/socket_owners.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace lodestone::chaos {
namespace {

// The port at the end of "0100007F:1F90"; -1 if there is none.
int PortIn(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return -1;
  int port = -1;
  std::istringstream(address.substr(colon + 1)) >> std::hex >> port;
  return port;
}

// The inode of the socket with these ports, from the kernel's table; empty if it is not there.
std::string InodeOf(const char* table, int local, int remote) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // The heading.
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, from, to, skipped, inode;
    words >> slot >> from >> to;
    if (PortIn(from) != local || PortIn(to) != remote) continue;
    for (int i = 0; i < 6; ++i) words >> skipped;  // State, queues, timer, retransmissions, user, timeout.
    words >> inode;
    if (!inode.empty() && inode != "0") return inode;
  }
  return "";
}

bool Has(pid_t pid, const std::string& socket) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(absl::StrCat("/proc/", pid, "/fd"), error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(it->path(), gone) == socket) return true;
  }
  return false;
}

}  // namespace

void SocketOwners::Add(pid_t pid, int name) {
  MutexLock lock(&mu_);
  names_[pid] = name;
}

void SocketOwners::Remove(pid_t pid) {
  MutexLock lock(&mu_);
  names_.erase(pid);
}

std::optional<int> SocketOwners::NameOf(int port, int to) const {
  std::string inode = InodeOf("/proc/net/tcp6", port, to);  // gRPC's sockets are of both families.
  if (inode.empty()) inode = InodeOf("/proc/net/tcp", port, to);
  if (inode.empty()) return std::nullopt;
  const std::string socket = absl::StrCat("socket:[", inode, "]");
  MutexLock lock(&mu_);
  for (const auto& [pid, name] : names_) {
    if (Has(pid, socket)) return name;
  }
  return std::nullopt;
}

}  // namespace lodestone::chaos
