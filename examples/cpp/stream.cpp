// A reply as it comes, in C++: handles that free themselves, errors as exceptions, a cancel from another thread.
//
//   c++ -std=c++17 stream.cpp $(pkg-config --cflags --libs selvedge) -o stream
//   ./stream model.gguf "Why is the sky blue?" [MILLISECONDS]
#include <selvedge.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

// Frees what a `slv_..._free` frees.
template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T *handle) const {
    Free(handle);
  }
};

using Source = std::unique_ptr<slv_source, Deleter<slv_source_free>>;
using Options = std::unique_ptr<slv_options, Deleter<slv_options_free>>;
using Cancel = std::unique_ptr<slv_cancel, Deleter<slv_cancel_free>>;
using Model = std::unique_ptr<slv_model, Deleter<slv_model_free>>;
using Text = std::unique_ptr<slv_text, Deleter<slv_text_free>>;
using Session = std::unique_ptr<slv_session, Deleter<slv_session_free>>;
using String = std::unique_ptr<char, Deleter<slv_string_free>>;

void check(slv_status status) {
  if (status != SLV_STATUS_OK) throw std::runtime_error(slv_last_error());
}

// A handle from a call whose last argument is its place.
template <typename Handle, typename Call, typename... Args>
Handle make(Call call, Args... args) {
  typename Handle::pointer out = nullptr;
  check(call(args..., &out));
  return Handle(out);
}

std::vector<uint32_t> tokenize(const Text &text, const std::string &words) {
  std::size_t n = 0;
  std::vector<uint32_t> ids(words.size() + 8);
  check(slv_text_tokenize(text.get(), words.data(), words.size(), 1, 0, ids.data(), ids.size(), &n));
  ids.resize(n);
  return ids;
}

// No exception may leave a callback: what goes wrong in it is kept, and ends the call.
int show(const slv_event *event, void *) noexcept {
  try {
    std::size_t len = 0;
    const char *piece = slv_event_text(event, &len);
    std::cout.write(piece, static_cast<std::streamsize>(len)).flush();
    return std::cout ? 0 : 1;
  } catch (...) {
    return 1;
  }
}

void run(const std::string &path, const std::string &words, int milliseconds) {
  auto source = make<Source>(slv_source_path, path.c_str());
  auto model_options = make<Options>(slv_options_model);
  check(slv_options_set_int(model_options.get(), "n_ctx", 1024));
  auto model = make<Model>(slv_model_open, source.get(), model_options.get(), nullptr, nullptr, nullptr);
  auto text = make<Text>(slv_text_of_model, model.get());
  auto session = make<Session>(slv_session_new, model.get());
  auto reply = make<Options>(slv_options_generate);
  check(slv_options_set_int(reply.get(), "max_tokens", 48));
  check(slv_options_set_float(reply.get(), "temperature", 0.0));
  auto cancel = make<Cancel>(slv_cancel_new);

  std::promise<void> over;
  std::thread timer([&, ended = over.get_future()] {
    if (milliseconds > 0 && ended.wait_for(std::chrono::milliseconds(milliseconds)) == std::future_status::timeout) {
      slv_cancel_cancel(cancel.get());
    }
  });
  const auto ids = tokenize(text, words);
  const auto status = slv_session_generate(session.get(), ids.data(), ids.size(), reply.get(), cancel.get(), show, nullptr);
  over.set_value();
  timer.join();
  std::cout << '\n';
  if (status == SLV_STATUS_CANCELLED) {
    std::cerr << "ended after " << milliseconds << " ms\n";
    return;
  }
  check(status);
  auto stats = make<String>(slv_session_stats, session.get());
  std::cerr << stats.get() << '\n';
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) {
    std::cerr << "usage: " << argv[0] << " MODEL.gguf TEXT [MILLISECONDS]\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 0);
  } catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
