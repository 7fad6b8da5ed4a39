#include "worker/report/worker_http.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/http/monitoring.h"
#include "common/telemetry/log.h"
#include "google/protobuf/descriptor.h"

namespace lodestone::worker {
namespace {

constexpr auto kCounter = MetricFamilies::Type::kCounter;
constexpr auto kGauge = MetricFamilies::Type::kGauge;

constexpr char kDelayHelp[] =
    "Mean number of updates, own and others', between the reading of a table's values and the application of the "
    "gradient "
    "computed from them.";

// "training".
std::string NameOf(v1::Phase phase) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::Phase_Name(phase), "PHASE_"));
}

bool IsAtWork(v1::Phase phase) {
  return phase == v1::PHASE_TRAINING || phase == v1::PHASE_WAITING || phase == v1::PHASE_EVALUATING;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerHttp>> WorkerHttp::Start(const std::string& listen,
                                                              HttpServer::Security security) {
  std::unique_ptr<WorkerHttp> http(new WorkerHttp);
  WorkerHttp* const self = http.get();
  auto server = HttpServer::Start(
      listen,
      MonitoringPaths([self](MetricFamilies* to) { self->AddMetrics(to); }, [self] { return self->Readiness(); }),
      std::move(security));
  if (!server.ok()) return Annotate(server.status(), "worker.http_listen");
  http->server_ = *std::move(server);
  LODESTONE_LOG(INFO, "worker", "answers HTTP on={} port={}", listen, http->port());
  return http;
}

void WorkerHttp::Joined(uint32_t index) {
  MutexLock lock(&mu_);
  joined_ = true;
  index_ = index;
}

void WorkerHttp::Report(const v1::WorkerProgress& progress) {
  MutexLock lock(&mu_);
  progress_ = progress;
}

absl::Status WorkerHttp::Readiness() const {
  MutexLock lock(&mu_);
  if (!joined_) return absl::UnavailableError("this worker has not joined the cluster yet");
  if (IsAtWork(progress_.phase())) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("this worker is ", NameOf(progress_.phase())));
}

void WorkerHttp::AddMetrics(MetricFamilies* to) const {
  const bool ready = Readiness().ok();
  MutexLock lock(&mu_);
  to->Add("lodestone_worker_ready", "Whether it is ready, as /readyz says.", kGauge, ready);
  if (!joined_) return;
  to->Add("lodestone_worker_info", "Always 1; its labels say which worker of the cluster this is.", kGauge, 1,
          {{"index", absl::StrCat(index_)}});
  const google::protobuf::EnumDescriptor& phases = *v1::Phase_descriptor();
  for (int i = 0; i < phases.value_count(); ++i) {
    const auto phase = static_cast<v1::Phase>(phases.value(i)->number());
    to->Add("lodestone_worker_phase", "1 for what it is doing, 0 for the others.", kGauge, phase == progress_.phase(),
            {{"phase", NameOf(phase)}});
  }
  to->Add("lodestone_worker_steps_total", "Steps taken.", kCounter, static_cast<double>(progress_.clock()));
  to->Add("lodestone_worker_samples_total", "Samples trained on.", kCounter, static_cast<double>(progress_.samples()));
  to->Add("lodestone_worker_samples_expected", "Samples that it will have trained on at the end; 0: unknown yet.",
          kGauge, static_cast<double>(progress_.samples_total()));
  to->Add("lodestone_worker_loss", "Mean training loss of the newest steps.", kGauge, progress_.loss());
  for (const v1::DelaySummary& delay : progress_.delays()) {
    const MetricLabels labels = {{"table", delay.table()}};
    to->Add("lodestone_worker_table_delay_updates", kDelayHelp, kGauge, delay.mean(), labels);
    to->Add("lodestone_worker_table_delay_updates_p90", "Nine of ten pushes had no more of that.", kGauge, delay.p90(),
            labels);
    to->Add("lodestone_worker_table_delay_updates_max", "The most of that.", kGauge, delay.max(), labels);
  }
  to->Add("lodestone_worker_evaluated_samples", "Samples that its evaluation has read.", kGauge,
          static_cast<double>(progress_.evaluated()));
  to->Add("lodestone_worker_evaluated_samples_expected", "Samples that its evaluation reads in all.", kGauge,
          static_cast<double>(progress_.evaluated_total()));
}

}  // namespace lodestone::worker
