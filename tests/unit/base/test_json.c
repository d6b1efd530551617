/* SPDX-License-Identifier: BSD-3-Clause */
#include "../rows.h"

#include <unistd.h>

#include "base/json.h"

static void reads(void **state)
{
	static const struct {
		const char *text;
		const char *said; /* part of the error; NULL: must be read */
		const char *why;
	} rows[] = {
		{"{}", NULL, "an empty object"},
		{" {\"a\": [1, 2.5, null, true, \"\xc3\xb6\"]}\n", NULL, "all kinds"},
		{"", "not JSON", "nothing"},
		{"{", "line 1", "cut short"},
		{"{\"a\":\n1,\n\"a\":2}", "line 3", "a key twice"},
		{"[1]", "object", "an array"},
		{"1", "not JSON", "a number"},
		{"{} x", "not JSON", "more behind it"},
		{"{\"a\":01}", "not JSON", "a leading zero"},
		{"{\"a\":NaN}", "not JSON", "not a number"},
		{"{\"a\":99999999999999999999}", "not JSON", "an integer over 64 bits"},
		{"{\"a\":\"\xff\"}", "not JSON", "no UTF-8"},
		{"{'a':1}", "not JSON", "the wrong quotes"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct error err = {0};
		json_t *json = NULL;
		int rc = json_read("card of n1", rows[i].text, strlen(rows[i].text), 1000, &json,
				   &err);

		if (rc != (rows[i].said ? -ERR_DATA : 0) || !json != !!rc)
			fail_msg("'%s' (%s): %d, %s", rows[i].text, rows[i].why, rc, err.text);
		if (rc && (!strstr(err.text, rows[i].said) || !strstr(err.text, "card of n1")))
			fail_msg("'%s': '%s' without '%s'", rows[i].text, err.text, rows[i].said);
		json_decref(json);
	}
}

static void limits(void **state)
{
	json_t *json = NULL;
	struct error err = {0};
	char deep[8192];

	assert_int_equal(json_read("x", "{\"a\":1}", 7, 6, &json, &err), -ERR_DATA);
	assert_int_equal(json_read("x", "{\"a\":1}", 7, 7, &json, &err), 0);
	json_decref(json);
	/* Deep nesting costs stack; jansson's own limit applies first. */
	json = NULL;
	memset(deep, '[', sizeof deep);
	memcpy(deep, "{\"a\":", 5);
	assert_int_equal(json_read("x", deep, sizeof deep, sizeof deep, &json, &err), -ERR_DATA);
	assert_null(json);
	/* A NUL inside the text does not end it. */
	assert_int_equal(json_read("x", "{}\0{}", 5, 10, &json, &err), -ERR_DATA);
}

static void members(void **state)
{
	static const char text[] = "{\"s\":\"x\",\"i\":-3,\"big\":9223372036854775807,\"r\":1.5,"
				   "\"t\":true,\"n\":null,\"a\":[],\"o\":{}}";
	JSON_AUTO json = NULL;
	struct error err = {0};
	const char *string = "kept";
	int64_t number = 42;
	json_t *part = NULL;

	assert_int_equal(json_read("x", text, sizeof text - 1, 1000, &json, &err), 0);
	assert_int_equal(json_get_string("x", json, "s", &string, &err), 0);
	assert_string_equal(string, "x");
	assert_int_equal(json_get_int("x", json, "i", -3, 3, &number, &err), 0);
	assert_int_equal(number, -3);
	assert_int_equal(json_get_int("x", json, "big", 0, INT64_MAX, &number, &err), 0);
	assert_true(number == INT64_MAX);
	assert_int_equal(json_get_array("x", json, "a", &part, &err), 0);
	assert_int_equal(json_get_object("x", json, "o", &part, &err), 0);

	/* A value of the wrong type leaves the output untouched. The error names the key, the
	 * value found and the type expected. */
	static const struct {
		const char *key, *said;
	} rows[] = {{"i", "-3"},    {"r", "real"},   {"t", "true"},	 {"n", "null"},
		    {"a", "array"}, {"o", "object"}, {"none", "missing"}};

	for (size_t i = 0; i < ROWS(rows); i++) {
		string = "kept";
		assert_int_equal(json_get_string("card", json, rows[i].key, &string, &err),
				 -ERR_DATA);
		assert_string_equal(string, "kept");
		if (!strstr(err.text, rows[i].said) || !strstr(err.text, rows[i].key) ||
		    !strstr(err.text, "card") || !strstr(err.text, "a string"))
			fail_msg("%s: %s", rows[i].key, err.text);
	}
	number = 42;
	assert_int_equal(json_get_int("x", json, "i", 0, 9, &number, &err), -ERR_DATA);
	assert_int_equal(json_get_int("x", json, "i", -9, -4, &number, &err), -ERR_DATA);
	assert_int_equal(json_get_int("x", json, "r", 0, 9, &number, &err), -ERR_DATA);
	assert_int_equal(json_get_int("x", json, "s", 0, 9, &number, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "\"x\""));
	assert_int_equal(number, 42);
	assert_int_equal(json_get_array("x", json, "o", &part, &err), -ERR_DATA);
	assert_int_equal(json_get_object("x", json, "a", &part, &err), -ERR_DATA);
	/* A member of something that is not an object counts as missing. */
	assert_int_equal(json_get_object("x", part, "a", &part, &err), -ERR_DATA);
	assert_int_equal(json_get_string("x", NULL, "a", &string, &err), -ERR_DATA);
}

static void texts(void **state)
{
	static const struct {
		const char *text, *expected, *why;
	} rows[] = {
		{"plain", "plain", "ASCII"},
		{"\xc3\xb6\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xb6\xe2\x82\xac\xf0\x9f\x98\x80",
		 "two, three and four bytes"},
		{"a\xff"
		 "b",
		 "a\xef\xbf\xbd"
		 "b",
		 "a byte that begins nothing"},
		{"\xc3", "\xef\xbf\xbd", "cut short"},
		{"\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd", "cut short after two"},
		{"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd", "overlong"},
		{"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", "a surrogate"},
		{"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
		 "above U+10FFFF"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		JSON_AUTO json = json_text(rows[i].text);

		if (!json || strcmp(json_string_value(json), rows[i].expected))
			fail_msg("%s: '%s'", rows[i].why, json ? json_string_value(json) : "NULL");
	}
	JSON_AUTO none = json_text(NULL);

	assert_true(json_is_null(none));
}

static void prints(void **state)
{
	JSON_AUTO json = json_pack("{s:i}", "a", 1);
	struct error err = {0};
	char *text = NULL;
	size_t size;
	FILE *stream = open_memstream(&text, &size), *full = fopen("/dev/full", "w");

	assert_int_equal(json_print(json, stream, &err), 0);
	fclose(stream);
	assert_string_equal(text, "{\n  \"a\": 1\n}\n");
	free(text);
	if (full) {
		assert_int_equal(json_print(json, full, &err), -ERR_IO);
		fclose(full);
	}
}

static void from_files(void **state)
{
	char path[] = "/tmp/berth-test-json-XXXXXX";
	int fd = mkstemp(path);
	json_t *json = NULL;
	struct error err = {0};

	assert_true(fd >= 0 && write(fd, "{\"a\":1}", 7) == 7);
	assert_int_equal(json_read_file(path, 100, &json, &err), 0);
	json_decref(json);
	json = NULL;
	assert_int_equal(json_read_file(path, 3, &json, &err), -ERR_DATA);
	assert_true(write(fd, "x", 1) == 1);
	assert_int_equal(json_read_file(path, 100, &json, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, path));
	close(fd);
	unlink(path);
	assert_int_equal(json_read_file(path, 100, &json, &err), -ERR_INPUT);
	assert_null(json);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads), cmocka_unit_test(limits), cmocka_unit_test(members),
		cmocka_unit_test(texts), cmocka_unit_test(prints), cmocka_unit_test(from_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
