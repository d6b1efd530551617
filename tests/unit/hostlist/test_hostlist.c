/* SPDX-License-Identifier: BSD-3-Clause */
#include "../rows.h"

#include "hostlist/hostlist.h"

struct row {
	const char *expr;
	const char *hosts; /* separated by blanks; NULL: must fail */
	const char *why;
};

/* As scontrol 22.05 prints them, unless the reason says otherwise. */
static const struct row rows[] = {
	{"", "", "an empty list"},
	{"a", "a", "one host"},
	{"a,b", "a b", "a list"},
	{"a,a", "a a", "repeats are kept"},
	{"a,,b,", "a b", "empty entries are ignored"},
	{"a b\tc\n", "a b c", "blanks separate"},
	{"n[1-3,07]", "n1 n2 n3 n07", "width of each entry"},
	{"n[09-11]", "n09 n10 n11", "padding"},
	{"n[9-11]", "n9 n10 n11", "no padding"},
	{"n[099-101]", "n099 n100 n101", "padding to three"},
	{"n[001-02]", "n001 n002", "the low end's width"},
	{"n[1-02]", "n1 n2", "the low end's width, again"},
	{"n[3,1]", "n3 n1", "order of the list"},
	{"[1-3]", "1 2 3", "no prefix"},
	{"n[1-2][3-4]", "n13 n14 n23 n24", "two brackets: the last one varies fastest"},
	{"n[1-2]m[1-2]x[1-2]", "n1m1x1 n1m1x2 n2m1x1 n2m1x2 n1m2x1 n1m2x2 n2m2x1 n2m2x2",
	 "three brackets: last, first, second"},
	{"n[2,1]m[1,3]x[1-2]", "n2m1x1 n2m1x2 n1m1x1 n1m1x2 n2m3x1 n2m3x2 n1m3x1 n1m3x2",
	 "three brackets with lists"},
	{"n[1-2]m[3,5]x[01-02],b[1-2]c[1-2]",
	 "n1m3x01 n1m3x02 n2m3x01 n2m3x02 n1m5x01 n1m5x02 n2m5x01 n2m5x02 b1c1 b1c2 b2c1 b2c2",
	 "several names with brackets"},
	{"n[1-2]-ib", "n1-ib n2-ib", "a suffix (22.05 refuses it, later versions accept it)"},
	{"x1000c[0-1]s[6-7]b[0-1]n0",
	 "x1000c0s6b0n0 x1000c0s6b1n0 x1000c1s6b0n0 x1000c1s6b1n0 x1000c0s7b0n0 x1000c0s7b1n0 "
	 "x1000c1s7b0n0 x1000c1s7b1n0",
	 "Cray names: brackets and a suffix"},
	{"n[18446744073709551615]", "n18446744073709551615", "64 bits"},
	{"n{1-2}", "n{1-2}", "other brackets are ordinary characters"},
	{"n[18446744073709551616]", NULL, "65 bits"},
	{"n[3-1]", NULL, "a descending range"},
	{"n[", NULL, "unclosed bracket (scontrol prints 'n]')"},
	{"n[1", NULL, "unclosed bracket"},
	{"n1]", NULL, "unopened bracket"},
	{"n[]", NULL, "an empty bracket"},
	{"n[1-]", NULL, "no upper end (scontrol takes it as 1)"},
	{"n[-1]", NULL, "no lower end"},
	{"n[1,]", NULL, "a trailing comma inside"},
	{"n[1,,2]", NULL, "an empty entry inside"},
	{"n[1-2-3]", NULL, "two dashes"},
	{"n[a]", NULL, "not a number"},
	{"n[0x1-0x3]", NULL, "hexadecimal"},
	{"n[[1-2]]", NULL, "nested brackets"},
	{"n[1 - 2]", NULL, "blanks in a bracket (scontrol pads them)"},
	{"bgl[123x456]", NULL, "Blue Gene boxes (removed from Slurm in 2015)"},
	{"n\001", NULL, "a control character"},
	{"-x", NULL, "would be an option on a command line"},
	{"a,-[1-2]", NULL, "the same, in a list"},
	{"../n[1-2]", NULL, "would be a path as a file name"},
	{"n[0-999999999]", NULL, "too many hosts"},
	{"n[0-262144]", NULL, "one host too many"},
	{"n[1-9][1-9][1-9][1-9][1-9][1-9]", NULL, "too many hosts, as a product"},
	{"a,n[1-512][1-512]", NULL, "too many hosts, as a sum"},
};

static char *joined(const struct hosts *hosts)
{
	size_t size = 1;

	for (size_t i = 0; i < hosts->count; i++)
		size += strlen(hosts->names[i]) + 1;
	char *text = calloc(1, size);

	for (size_t i = 0; i < hosts->count; i++) {
		strcat(text, i ? " " : "");
		strcat(text, hosts->names[i]);
	}
	return text;
}

static void expands(void **state)
{
	(void)state;
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct hosts hosts = {0};
		struct error err = {0};
		int rc = hostlist_expand(rows[i].expr, &hosts, &err);

		if (!rows[i].hosts) {
			if (rc != -ERR_DATA || hosts.names || !*err.text)
				fail_msg("'%s' (%s): code %d", rows[i].expr, rows[i].why, rc);
			continue;
		}
		if (rc)
			fail_msg("'%s' (%s): %s", rows[i].expr, rows[i].why, err.text);
		char *text = joined(&hosts);

		if (strcmp(text, rows[i].hosts))
			fail_msg("'%s' (%s): '%s'", rows[i].expr, rows[i].why, text);
		free(text);
		hosts_free(&hosts);
	}
}

static void limits(void **state)
{
	(void)state;
	struct hosts hosts = {0};
	struct error err = {0};

	assert_int_equal(hostlist_expand("n[1-512][1-512]", &hosts, &err), 0);
	assert_int_equal(hosts.count, HOSTLIST_MAX_HOSTS);
	hosts_free(&hosts);

	/* A hostile text of the maximum size costs no more than reading it. */
	char *text = malloc(HOSTLIST_MAX_TEXT + 2);

	memset(text, '[', HOSTLIST_MAX_TEXT);
	text[HOSTLIST_MAX_TEXT] = '\0';
	assert_int_equal(hostlist_expand(text, &hosts, &err), -ERR_DATA);
	memset(text, 'a', HOSTLIST_MAX_TEXT);
	assert_int_equal(hostlist_expand(text, &hosts, &err), -ERR_DATA);
	memset(text, ',', HOSTLIST_MAX_TEXT + 1);
	text[HOSTLIST_MAX_TEXT + 1] = '\0';
	assert_int_equal(hostlist_expand(text, &hosts, &err), -ERR_DATA);
	/* One bracket with millions of entries. */
	for (size_t i = 0; i < HOSTLIST_MAX_TEXT; i++)
		text[i] = i & 1 ? ',' : '1';
	memcpy(text, "n[", 2);
	text[HOSTLIST_MAX_TEXT] = '\0';
	assert_int_equal(hostlist_expand(text, &hosts, &err), -ERR_DATA);
	/* As many entries as hosts are allowed. The list must be expanded in linear time: if each
	 * name's entry were searched for, this would take 34 billion steps. */
	size_t used = (size_t)sprintf(text, "n[1");

	for (int i = 1; i < HOSTLIST_MAX_HOSTS; i++)
		used += (size_t)sprintf(text + used, ",%d", i % 9);
	strcpy(text + used, "]");
	assert_int_equal(hostlist_expand(text, &hosts, &err), 0);
	assert_int_equal(hosts.count, HOSTLIST_MAX_HOSTS);
	hosts_free(&hosts);
	/* More brackets than a name is allowed to have. */
	text[0] = '\0';
	for (int i = 0; i < 33; i++)
		strcat(text, "[1]");
	assert_int_equal(hostlist_expand(text, &hosts, &err), -ERR_DATA);
	/* A name that becomes too long only by expansion. */
	memset(text, 'a', 250);
	strcpy(text + 250, "[100000-100001]");
	assert_int_equal(hostlist_expand(text, &hosts, &err), -ERR_DATA);
	assert_null(hosts.names);
	free(text);
}

static void compresses(void **state)
{
	(void)state;
	static const char *const exprs[][2] = {
		{"n1", "n1"},
		{"n1,n2,n3", "n[1-3]"},
		{"n01,n02,n10", "n[01-02,10]"},
		{"n8,n9,n10,n11", "n[8-11]"},
		{"n08,n9", "n[08,9]"},
		{"n1-ib,n2-ib,m1", "n[1-2]-ib,m1"},
		{"a,b,c", "a,b,c"},
		{"x1c0n0,x1c0n1,x1c1n0", "x1c0n[0-1],x1c1n0"},
		{"n3,n2,n1", "n[3,2,1]"},
		{"n1,n1", "n[1,1]"},
		{"n99999999999999999999,n1", "n99999999999999999999,n1"},
	};

	for (size_t i = 0; i < ROWS(exprs); i++) {
		struct hosts hosts = {0}, again = {0};

		assert_int_equal(hostlist_expand(exprs[i][0], &hosts, NULL), 0);
		char *text = hostlist_compress((const char *const *)hosts.names, hosts.count);

		assert_string_equal(text, exprs[i][1]);
		assert_int_equal(hostlist_expand(text, &again, NULL), 0);
		char *a = joined(&hosts), *b = joined(&again);

		assert_string_equal(a, b);
		free(a), free(b), free(text);
		hosts_free(&hosts), hosts_free(&again);
	}
}

static void node_files(void **state)
{
	(void)state;
	static const struct {
		const char *text, *hosts; /* "name*slots ..."; NULL: must fail */
		const char *why;
	} table[] = {
		{"", "", "an empty file"},
		{"n1\nn2\n", "n1*1 n2*1", "two hosts"},
		{"n1\nn1\nn2\nn1\n", "n1*3 n2*1", "repeats that are not adjacent"},
		{"n1\r\nn2\r\n", "n1*1 n2*1", "CR"},
		{"\n\n  n1\t\n\nn2", "n1*1 n2*1", "blanks, blank lines, no last newline"},
		{"# all\nn1 # the first\n", "n1*1", "comments"},
		{"x1.hostmgmt.cm.example.com\n", "x1.hostmgmt.cm.example.com*1", "a full name"},
		{"n1 n2\n", NULL, "two names on a line"},
		{"n[1-2]\n", NULL, "a host list"},
		{"n1,n2\n", NULL, "a comma"},
		{"n\001\n", NULL, "a control character"},
		{"-x\n", NULL, "an option"},
		{"n/../m\n", NULL, "a path"},
	};

	for (size_t i = 0; i < ROWS(table); i++) {
		struct hosts hosts = {0};
		struct error err = {0};
		int rc = nodefile_parse(table[i].text, strlen(table[i].text), false, &hosts, &err);

		if (!table[i].hosts) {
			assert_int_equal(rc, -ERR_DATA);
			assert_non_null(strstr(err.text, "line 1"));
			continue;
		}
		char text[256] = "";

		assert_int_equal(rc, 0);
		for (size_t k = 0; k < hosts.count; k++)
			sprintf(text + strlen(text), "%s%s*%d", k ? " " : "", hosts.names[k],
				hosts.slots[k]);
		if (strcmp(text, table[i].hosts))
			fail_msg("%s: '%s'", table[i].why, text);
		hosts_free(&hosts);
	}

	struct hosts hosts = {0};
	struct error err = {0};

	assert_int_equal(nodefile_parse("a\0b\n", 4, false, &hosts, &err), -ERR_DATA);
	assert_int_equal(nodefile_read("/nonexistent/nodes", false, &hosts, &err), -ERR_INPUT);
	assert_non_null(strstr(err.text, "/nonexistent/nodes"));
}

static void host_files(void **state)
{
	(void)state;
	static const struct {
		const char *text, *hosts; /* "name*slots ...", or "!" and a part of the error */
		const char *why;
	} table[] = {
		{"", "", "an empty file"},
		{"n2\n# the others\nn1 # one\n", "n2*0 n1*0", "slots unknown"},
		{"n1 slots=4\r\nn2\tslots=1 # last", "n1*4 n2*1", "slots as in Open MPI"},
		{"n1\nn2\nn1\n", "!line 3: host 'n1' is already listed on line 1",
		 "a repeated host"},
		{"\nn1 slots=2\n\nn1 slots=2", "!line 4: host 'n1' is already listed on line 2",
		 "a repeated host with slots"},
		{"n1 n2\n", "!line 1: 'n2' after a host; expected nothing or slots=N",
		 "two names on a line"},
		{"n1 slots=0\n", "!line 1: 'slots=0'", "zero slots"},
		{"n1 slots=\n", "!line 1: 'slots='", "incomplete slots"},
		{"n1 slots=4 max_slots=4\n", "!line 1: 'slots=4 max_slots=4'",
		 "more options than slots"},
		{"n1 slots=100001\n", "!slots=100001", "too many slots"},
		{"n1 slots=99999999999999999999\n", "!slots=9999", "far too many slots"},
		{"n1\nn[1-2]\n", "!line 2", "a host list"},
		{"-x slots=1\n", "!line 1", "an option"},
	};

	for (size_t i = 0; i < ROWS(table); i++) {
		struct hosts hosts = {0};
		struct error err = {0};
		int rc = nodefile_parse(table[i].text, strlen(table[i].text), true, &hosts, &err);
		char text[256] = "";

		if (table[i].hosts[0] == '!') {
			if (rc != -ERR_DATA || !strstr(err.text, table[i].hosts + 1) || hosts.names)
				fail_msg("%s: %d, '%s'", table[i].why, rc, err.text);
			continue;
		}
		assert_int_equal(rc, 0);
		for (size_t k = 0; k < hosts.count; k++)
			sprintf(text + strlen(text), "%s%s*%d", k ? " " : "", hosts.names[k],
				hosts.slots[k]);
		if (strcmp(text, table[i].hosts))
			fail_msg("%s: '%s'", table[i].why, text);
		hosts_free(&hosts);
	}
}

/* A repeated host after more hosts than the initial table holds. */
static void host_file_twice_late(void **state)
{
	(void)state;
	char *text = malloc(3000 * 8);
	struct hosts hosts = {0};
	struct error err = {0};
	size_t size = 0;

	for (int i = 0; i < 3000; i++)
		size += (size_t)sprintf(text + size, "n%04d\n", i);
	assert_int_equal(nodefile_parse(text, size, true, &hosts, NULL), 0);
	assert_int_equal(hosts.count, 3000);
	hosts_free(&hosts);
	sprintf(text + size, "n2000");
	assert_int_equal(nodefile_parse(text, size + 5, true, &hosts, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "line 3001: host 'n2000' is already listed on line 2001"));
	free(text);
}

static void many_repeats(void **state)
{
	(void)state;
	/* 100,000 lines, on which 1,000 hosts take turns. */
	size_t size = 0;
	char *text = malloc(100000 * 8);
	struct hosts hosts = {0};

	for (int i = 0; i < 100000; i++)
		size += (size_t)sprintf(text + size, "n%04d\n", i % 1000);
	assert_int_equal(nodefile_parse(text, size, false, &hosts, NULL), 0);
	assert_int_equal(hosts.count, 1000);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(hosts.slots[i], 100);
	assert_string_equal(hosts.names[999], "n0999");
	hosts_free(&hosts);
	free(text);
}

static uint32_t low_hash(uint32_t h, const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++)
		h = (h ^ (unsigned char)text[i]) * 0x1b3u;
	return h & 0xfffff;
}

#define PIECES 17 /* 2^17 names */
#define PIECE 4	  /* bytes */

/* Names with equal hashes in the low 20 bits of FNV-1a with its usual start value. Each consists of
 * 17 pieces, and each piece has two spellings that lead from the same state to the same state. With
 * such a hash, a table needs nine billion comparisons for this file. */
static void colliding_names(void **state)
{
	static char pieces[PIECES][2][PIECE + 1], *seen[1 << 20];
	uint32_t h = 0x84222325u & 0xfffff;

	for (int i = 0; i < PIECES; i++) {
		static char texts[1 << 14][PIECE + 1];
		int n = 0;

		memset(seen, 0, sizeof seen);
		for (;; n++) {
			assert_true(n < 1 << 14);
			sprintf(texts[n], "%04x", (unsigned)n);
			char **twin = &seen[low_hash(h, texts[n], PIECE)];

			if (*twin) {
				memcpy(pieces[i][0], *twin, PIECE);
				memcpy(pieces[i][1], texts[n], PIECE);
				break;
			}
			*twin = texts[n];
		}
		h = low_hash(h, texts[n], PIECE);
	}
	size_t line = PIECES * PIECE + 1, count = (size_t)1 << PIECES;
	char *text = malloc(count * line), *at = text;
	struct hosts hosts = {0};

	assert_non_null(text);
	for (size_t k = 0; k < count; k++) {
		for (int i = 0; i < PIECES; i++, at += PIECE)
			memcpy(at, pieces[i][k >> i & 1], PIECE);
		*at++ = '\n';
	}
	assert_int_equal(low_hash(0x84222325u, text, line - 1), h);
	assert_int_equal(nodefile_parse(text, count * line, false, &hosts, NULL), 0);
	assert_int_equal(hosts.count, count);
	hosts_free(&hosts);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(expands),	cmocka_unit_test(limits),
		cmocka_unit_test(compresses),	cmocka_unit_test(node_files),
		cmocka_unit_test(host_files),	cmocka_unit_test(host_file_twice_late),
		cmocka_unit_test(many_repeats), cmocka_unit_test(colliding_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
