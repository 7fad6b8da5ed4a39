#include "tests/common/rpc/fake_dns.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

// RFC 1035: a message starts with its id, flags and four counts of 16 bits each; then comes the question: the name, as
// parts with their lengths up to an empty one, its type and class.
constexpr size_t kHeaderBytes = 12;
constexpr uint16_t kTypeA = 1;

}  // namespace

FakeDns::FakeDns(const std::string& address) : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(own);
  EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&own), length), 0);
  EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&own), &length), 0);
  port_ = ntohs(own.sin_port);
  Move(address);
  thread_ = std::thread([this] { Run(); });
}

FakeDns::~FakeDns() {
  shutdown(socket_, SHUT_RDWR);  // Ends the wait for a question.
  thread_.join();
  close(socket_);
}

std::string FakeDns::Target(const std::string& host_port) const {
  return absl::StrCat("dns://127.0.0.1:", port_, "/", host_port);
}

void FakeDns::Move(const std::string& address) {
  MutexLock lock(&mu_);
  address_ = address;
}

void FakeDns::Run() {
  for (;;) {
    char buffer[512];
    sockaddr_in from = {};
    socklen_t length = sizeof(from);
    const ssize_t bytes = recvfrom(socket_, buffer, sizeof(buffer), 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (bytes <= 0) return;
    const std::string answer = AnswerTo(std::string(buffer, static_cast<size_t>(bytes)));
    if (answer.empty()) continue;
    sendto(socket_, answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&from), length);
  }
}

std::string FakeDns::AnswerTo(const std::string& question) {
  size_t end = kHeaderBytes;
  while (end < question.size() && question[end] != 0) end += 1 + static_cast<uint8_t>(question[end]);
  end += 5;  // The empty part, type and class.
  if (end > question.size()) return "";
  const bool is_a = question[end - 4] == 0 && question[end - 3] == kTypeA;
  // The question's id, "an answer, by who knows, without error", one question, one answer or none.
  std::string answer = question.substr(0, 2) + std::string("\x85\x80\0\x01\0", 5) + (is_a ? '\x01' : '\0') +
                       std::string(4, '\0') + question.substr(kHeaderBytes, end - kHeaderBytes);
  if (!is_a) return answer;
  MutexLock lock(&mu_);
  in_addr address = {};
  EXPECT_EQ(inet_pton(AF_INET, address_.c_str(), &address), 1) << address_;
  // The name as in the question, type A, class IN, to be kept for 0 s, 4 bytes.
  answer += std::string("\xc0\x0c\0\x01\0\x01\0\0\0\0\0\x04", 12);
  answer.append(reinterpret_cast<const char*>(&address), sizeof(address));
  return answer;
}

}  // namespace lodestone
