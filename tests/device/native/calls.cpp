// What Python calls by name. No exception may leave: an error's text is returned in its place.
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "allocator.h"
#include "machine.h"

namespace {

thread_local std::string text;
std::shared_ptr<bench::Graph> graphs[1024];
int graph_count = 0;

template <class Action>
const char* told(Action action) {
  try {
    action();
    return nullptr;
  } catch (const std::exception& error) {
    text = error.what();
    return text.c_str();
  }
}

bench::Stream here() { return bench::current_stream(bench::current_device()); }

}  // namespace

extern "C" {

const char* bench_launch(const char* name, int64_t ns) {
  return told([&] { bench::launch(name, ns, here()); });
}
const char* bench_touch() { return told(bench::touch); }
int bench_is_touched() { return bench::is_touched(); }
int bench_is_bad_fork() { return bench::is_bad_fork(); }
int bench_is_capturing() { return bench::is_capturing(here()); }
void bench_set_duration(const char* name, int64_t ns) { bench::set_duration(name, ns); }
void bench_set_capacity(int64_t bytes) { bench::set_capacity(static_cast<size_t>(bytes)); }
void bench_set_lost_kernels(double share) { bench::set_lost_kernels(share); }
void bench_set_event_cost(int64_t ns) { bench::set_event_cost(ns); }
void bench_recover() { bench::recover(); }
int64_t bench_now() { return bench::now(); }

const char* bench_begin_capture() { return told(bench::begin_capture); }
int bench_end_capture() {
  graphs[graph_count % 1024] = bench::end_capture();
  return graph_count++ % 1024;
}
const char* bench_replay(int graph) {
  return told([&] { bench::replay(*graphs[graph]); });
}
const char* bench_graph_names(int graph) {
  text.clear();
  for (const auto& [name, _] : *graphs[graph]) text += (text.empty() ? "" : " ") + name;
  return text.c_str();
}
}
