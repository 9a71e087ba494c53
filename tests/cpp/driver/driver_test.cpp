// Opening a driver never throws: what is missing stands in the capabilities, with what was found
// and what is needed.
#include "pygraph/driver.h"

#include <algorithm>

#include "support.h"

namespace pygraph {
namespace {

using testing::message_of;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Driver, MissingLibraryIsReported) {
  const Driver driver = load_driver("libno_such_driver.so.1");
  EXPECT_FALSE(driver.capabilities.usable());
  EXPECT_TRUE(contains(driver.capabilities.problem, "libno_such_driver.so.1"));
  EXPECT_TRUE(contains(driver.capabilities.problem, "12.4"));
  EXPECT_TRUE(driver.capabilities.library.empty());
  EXPECT_EQ(driver.api.cuInit, nullptr);
}

TEST(Driver, LibraryThatIsNoDriverIsReported) {
  const Driver driver = load_driver("libc.so.6");
  EXPECT_FALSE(driver.capabilities.usable());
  EXPECT_TRUE(contains(driver.capabilities.problem, "cuDriverGetVersion"));
}

TEST(Driver, TooOldNamesFoundAndNeeded) {
  const Driver driver = load_driver(FAKE_DRIVER_BARE, 12050);
  EXPECT_EQ(driver.capabilities.version, 12040);
  EXPECT_TRUE(contains(driver.capabilities.problem, "too old"));
  EXPECT_TRUE(contains(driver.capabilities.problem, "12.4"));
  EXPECT_TRUE(contains(driver.capabilities.problem, "12.5"));
}

TEST(Driver, MissingSymbolsAreNamedAsTheLibraryWouldNameThem) {
  const Driver driver = load_driver(FAKE_DRIVER_BARE);
  const std::vector<std::string>& missing = driver.capabilities.missing;
  const auto names = [&](const char* name) {
    return std::find(missing.begin(), missing.end(), name) != missing.end();
  };
  EXPECT_TRUE(names("cuGraphLaunch"));
  EXPECT_TRUE(names("cuMemAlloc_v2"));
  EXPECT_FALSE(names("cuFuncGetName")) << "optional";
  EXPECT_FALSE(names("cuDriverGetVersion")) << "present";
  EXPECT_TRUE(contains(driver.capabilities.problem, "cuGraphLaunch"));
  EXPECT_FALSE(driver.capabilities.usable());
}

TEST(Driver, MachineWithoutDeviceIsReported) {
  const Driver driver = load_driver(FAKE_DRIVER_DEVICELESS);
  EXPECT_TRUE(driver.capabilities.missing.empty());
  EXPECT_FALSE(driver.capabilities.usable());
  EXPECT_TRUE(contains(driver.capabilities.problem, "CUDA_ERROR_NO_DEVICE"));
}

TEST(Driver, RealDriverIsUsableOrSaysWhyNot) {
  const Driver& driver = real_driver();
  EXPECT_EQ(&driver, &real_driver());
  EXPECT_EQ(driver.capabilities.usable(), driver.capabilities.problem.empty());
  if (driver.capabilities.usable()) {
    EXPECT_GE(driver.capabilities.version, Capabilities::kMinimumVersion);
    EXPECT_GT(driver.capabilities.device_count, 0);
  }
}

TEST(Driver, ErrorNamesCodeOperationObjectAndRemedy) {
  const Driver& driver = twin::driver();
  const std::string text = message_of<DriverError>(
      [&] { driver.check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc", "the arena", "free something"); });
  for (const char* part :
       {"CUDA_ERROR_OUT_OF_MEMORY", "cuMemAlloc", "the arena", "free something"}) {
    EXPECT_TRUE(contains(text, part)) << part << " is not in: " << text;
  }
  try {
    driver.check(CUDA_ERROR_INVALID_VALUE, "cuGraphLaunch", "a graph");
    FAIL() << "nothing was thrown";
  } catch (const DriverError& error) {
    EXPECT_EQ(error.code(), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(error.operation(), "cuGraphLaunch");
    EXPECT_EQ(error.object(), "a graph");
  }
  EXPECT_NO_THROW(driver.check(CUDA_SUCCESS, "cuInit"));
}

TEST(Driver, UnknownCodeIsNamedByNumber) {
  const auto unknown = static_cast<CUresult>(987);
  EXPECT_TRUE(contains(twin::driver().error_name(unknown), "987"));
  EXPECT_TRUE(contains(Driver{}.error_name(CUDA_ERROR_UNKNOWN), "999")) << "no table at all";
}

}  // namespace
}  // namespace pygraph
