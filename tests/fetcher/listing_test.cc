#include "fetcher/listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fetcher/xml.h"
#include "wire/times.h"

namespace ckfs {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kS3Page = R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
 <Name>b</Name><Prefix>m/</Prefix><KeyCount>2</KeyCount><MaxKeys>2</MaxKeys>
 <IsTruncated>true</IsTruncated>
 <Contents><Key>m/step%3D1/a+b%2Bc.txt</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified>
  <ETag>&quot;fba9dede5f27731c9771645a39863328-3&quot;</ETag><Size>434234</Size>
  <Owner><ID>x</ID></Owner><StorageClass>STANDARD</StorageClass></Contents>
 <Contents><Size>0</Size><ETag>abc</ETag><Key>m/cold</Key><StorageClass>GLACIER</StorageClass>
 </Contents>
 <EncodingType>url</EncodingType><NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</NextContinuationToken>
</ListBucketResult>)";

TEST(S3Listing, HasKeysDecodedAndETagsQuoted) {
  const auto page = parse_s3_listing(kS3Page, "s3://b");
  ASSERT_TRUE(page) << page.error().message();
  ASSERT_EQ(page->objects.size(), 2);
  EXPECT_EQ(page->objects[0], (ListedObject{.name = "m/step=1/a b+c.txt",
                                            .size = 434234,
                                            .version = "\"fba9dede5f27731c9771645a39863328-3\"",
                                            .time = 1255369830}));
  EXPECT_EQ(page->objects[1].name, "m/cold");
  EXPECT_EQ(page->objects[1].version, "\"abc\"");
  EXPECT_TRUE(page->objects[1].is_cold);
  EXPECT_EQ(page->next, "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=");
}

TEST(S3Listing, LeavesKeysAloneThatAreNotEncoded) {
  const auto page = parse_s3_listing(
      "<ListBucketResult><Contents><Key>a+b%2B</Key><Size>1</Size><ETag>\"e\"</ETag></Contents>"
      "</ListBucketResult>",
      "s3://b");
  ASSERT_TRUE(page) << page.error().message();
  EXPECT_EQ(page->objects.at(0).name, "a+b%2B");
  EXPECT_EQ(page->next, "");
}

TEST(S3Listing, SaysWhatIsWrong) {
  const auto says = [](std::string_view text) {
    const auto page = parse_s3_listing(text, "s3://b");
    return page ? "fine" : page.error().message();
  };
  EXPECT_EQ(says("<html><body/></html>"), "s3://b: it is \"html\" and no ListBucketResult");
  EXPECT_EQ(says(""), "s3://b: not XML: no element found (line 1)");
  EXPECT_EQ(says("<ListBucketResult><Contents><Key>k</Key><Size>-1</Size><ETag>e</ETag></Contents>"
                 "</ListBucketResult>"),
            "s3://b: \"k\": no key, size or ETag");
  EXPECT_EQ(says("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"),
            "s3://b: more objects, and no token for them");
  EXPECT_THAT(says("<ListBucketResult><Contents><Key>k"), HasSubstr("not XML"));
  EXPECT_EQ(says("<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><ListBucketResult>&b;"
                 "</ListBucketResult>"),
            "s3://b: it has a document type");
  std::string deep, long_key = "<ListBucketResult><Contents><Key>";
  for (int i = 0; i < 100; ++i) deep += "<ListBucketResult>";
  EXPECT_THAT(says(deep), HasSubstr("nested too deep"));
  EXPECT_THAT(says(long_key.append(70000, 'k')), HasSubstr("more than 65536 bytes of text"));
}

TEST(GcsListing, HasGenerationsAndChecksums) {
  const auto page = parse_gcs_listing(
      R"({"kind":"storage#objects","nextPageToken":"CgE=","items":[{"name":"run/a b","size":"7",
          "generation":"1700000000000001","crc32c":"AAAAAA==","updated":"2024-02-29T00:00:00.5Z"}]})",
      "gs://b");
  ASSERT_TRUE(page) << page.error().message();
  EXPECT_EQ(page->objects.at(0), (ListedObject{.name = "run/a b",
                                               .size = 7,
                                               .version = "1700000000000001",
                                               .hash = "crc32c:AAAAAA==",
                                               .time = 1709164800}));
  EXPECT_EQ(page->next, "CgE=");
  EXPECT_TRUE(parse_gcs_listing(R"({"kind":"storage#objects"})", "gs://b")->objects.empty());
}

TEST(GcsListing, SaysWhatIsWrong) {
  const auto says = [](std::string_view text) {
    const auto page = parse_gcs_listing(text, "gs://b");
    return page ? "fine" : page.error().message();
  };
  EXPECT_THAT(says("[]"), HasSubstr("gs://b: "));
  EXPECT_EQ(says(R"({"items":[{"name":"a","size":"1e9","generation":"1"}]})"),
            "gs://b: \"a\": no name, size or generation");
  EXPECT_EQ(says(R"({"items":[{"name":"a","size":"1","generation":"-1"}]})"),
            "gs://b: \"a\": no name, size or generation");
  EXPECT_THAT(says(R"({"items":[{"name":"a","size":"1","generation":"1",)"
                   R"("contentEncoding":"gzip"}]})"),
              HasSubstr("stored with Content-Encoding: gzip"));
}

TEST(HubTree, HasTheSizesAndHashesOfLargeFilesAndNoDirectories) {
  const std::string sha(64, 'a'), oid(40, 'b');
  const auto page =
      parse_hub_tree(fmt::format(R"([{{"type":"directory","oid":"{1}","size":0,"path":"te"}},
        {{"type":"file","oid":"{1}","size":4976698672,"lfs":{{"oid":"{0}","size":4976698672,
          "pointerSize":135}},"xetHash":"x","path":"te/model.safetensors"}},
        {{"type":"file","oid":"{1}","size":640,"path":"config.json"}}])",
                                 sha, oid),
                     "hf://a/b");
  ASSERT_TRUE(page) << page.error().message();
  ASSERT_EQ(page->objects.size(), 2);
  EXPECT_EQ(page->objects[0], (ListedObject{.name = "te/model.safetensors",
                                            .size = 4976698672,
                                            .version = sha,
                                            .hash = "sha256:" + sha}));
  EXPECT_EQ(page->objects[1], (ListedObject{.name = "config.json", .size = 640, .version = oid}));
}

TEST(HubTree, SaysWhatIsWrong) {
  const auto says = [](std::string_view text) {
    const auto page = parse_hub_tree(text, "hf://a/b");
    return page ? "fine" : page.error().message();
  };
  EXPECT_EQ(says(R"({"error":"no"})"), "hf://a/b: not a list");
  EXPECT_EQ(says(R"([],"x":[])"), "hf://a/b: not a list");
  EXPECT_EQ(says(R"([{"type":"file","path":"a","size":0.5,"oid":"x"}])"),
            "hf://a/b: \"a\": no path, size or object id");
  EXPECT_THAT(says("[{"), HasSubstr("not JSON"));
}

TEST(HubTree, HasItsNextPageInALink) {
  EXPECT_EQ(next_link("<https://h/api?cursor=a%2C>; rel=\"next\"").value(),
            "https://h/api?cursor=a%2C");
  EXPECT_EQ(next_link("<https://h/1>; rel=\"prev\", <https://h/2>; rel=\"next\"").value(),
            "https://h/2");
  EXPECT_FALSE(next_link("<https://h/1>; rel=\"prev\""));
  EXPECT_FALSE(next_link("<https://h/1"));
  EXPECT_FALSE(next_link(""));
}

TEST(HubRevision, IsACommitAndItsTime) {
  const auto revision =
      parse_hub_revision(R"({"id":"a/b","sha":"0123456789abcdef0123456789abcdef01234567",)"
                         R"("lastModified":"2024-02-29T00:00:00.000Z","siblings":[]})",
                         "hf://a/b");
  ASSERT_TRUE(revision);
  EXPECT_EQ(revision->commit, "0123456789abcdef0123456789abcdef01234567");
  EXPECT_EQ(revision->time, 1709164800);
  EXPECT_FALSE(parse_hub_revision(R"({"sha":"main"})", "hf://a/b"));
}

TEST(ServiceErrors, AreReadInEachServicesWords) {
  const auto s3 = parse_service_error(
      "<?xml version=\"1.0\"?><Error><Code>PermanentRedirect</Code><Message>use\nthis</Message>"
      "<Region>eu-west-1</Region></Error>");
  EXPECT_EQ(s3.code, "PermanentRedirect");
  EXPECT_EQ(s3.message, "use this");
  EXPECT_EQ(s3.region, "eu-west-1");
  EXPECT_EQ(parse_service_error(R"({"error":"Repository not found"})").message,
            "Repository not found");
  EXPECT_EQ(parse_service_error(R"({"error":{"code":403,"message":"no","status":"DENIED"}})").code,
            "DENIED");
  EXPECT_EQ(parse_service_error(R"({"error":"invalid_grant","error_description":"gone"})").code,
            "invalid_grant");
  EXPECT_EQ(parse_service_error("Not Found\nmore").message, "Not Found");
  EXPECT_EQ(parse_service_error("<html><body>").message, "");
  EXPECT_EQ(parse_service_error("").message, "");
}

TEST(Times, AreThoseOfServicesOrNone) {
  EXPECT_EQ(parse_iso_time("2009-10-12T17:50:30.000Z"), 1255369830);
  EXPECT_EQ(parse_iso_time("2009-10-12T19:50:30+02:00"), 1255369830);
  EXPECT_EQ(parse_http_time("Sun, 06 Nov 1994 08:49:37 GMT"), 784111777);
  EXPECT_FALSE(parse_iso_time("2009-13-12T17:50:30Z"));
  EXPECT_FALSE(parse_iso_time("yesterday"));
  EXPECT_FALSE(parse_http_time("06 Nov 1994 08:49:37 GMT"));
  EXPECT_FALSE(parse_http_time("Sun, 06 Nov 1994"));
}

}  // namespace
}  // namespace ckfs
