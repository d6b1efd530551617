/* SPDX-License-Identifier: BSD-3-Clause */
#include "../rows.h"

#include <unistd.h>

#include "base/env.h"

static struct env *make(const char *const *pairs, size_t count)
{
	struct env *env = env_new();

	for (size_t i = 0; i < count; i++)
		assert_int_equal(
			env_set(env, pairs[2 * i], pairs[2 * i + 1], ENV_FROM_USER, NULL, NULL), 0);
	return env;
}

static void names(void **state)
{
	static const struct {
		const char *name;
		int rc;
		const char *why;
	} rows[] = {
		{"A", 0, "a name"},
		{"a b", 0, "odd, but execve takes it"},
		{"BASH_FUNC_x%%", 0, "exported functions have such names"},
		{"", -ERR_DATA, "empty"},
		{"A=B", -ERR_DATA, "an equals sign"},
		{"=", -ERR_DATA, "an equals sign alone"},
	};
	struct env *env = env_new();

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct error err = {0};
		int rc = env_set(env, rows[i].name, "x", ENV_FROM_USER, NULL, &err);

		if (rc != rows[i].rc || err.code != -rows[i].rc)
			fail_msg("'%s' (%s): %d, '%s'", rows[i].name, rows[i].why, rc, err.text);
	}
	assert_int_equal(env_count(env), 3);
	env_free(env);
}

static void sets_and_drops(void **state)
{
	struct env *env = env_new();

	assert_null(env_get(env, "A"));
	assert_null(env_get(NULL, "A"));
	assert_int_equal(env_set(env, "A", "1", ENV_FROM_USER, NULL, NULL), 0);
	assert_int_equal(env_setf(env, "B", ENV_FROM_BERTH, "counted", NULL, "%d-%s", 7, "x"), 0);
	assert_string_equal(env_get(env, "B"), "7-x");
	/* A variable that is set again keeps its position; everything else is replaced. */
	assert_int_equal(env_set(env, "A", "2", ENV_FROM_OPTION, "asked for", NULL), 0);
	assert_int_equal(env_count(env), 2);
	assert_string_equal(env_at(env, 0)->name, "A");
	assert_string_equal(env_at(env, 0)->value, "2");
	assert_string_equal(env_at(env, 0)->why, "asked for");
	assert_int_equal(env_at(env, 0)->from, ENV_FROM_OPTION);
	assert_null(env_at(env, 2));
	/* A variable may be set to its own value (the same pointer). */
	assert_int_equal(
		env_set(env, "A", env_get(env, "A"), ENV_FROM_SITE, env_at(env, 0)->why, NULL), 0);
	assert_string_equal(env_get(env, "A"), "2");
	/* A removal mark is an entry without a value. */
	assert_int_equal(env_set(env, "A", NULL, ENV_FROM_BERTH, NULL, NULL), 0);
	assert_null(env_get(env, "A"));
	assert_non_null(env_find(env, "A"));
	env_drop(env, "A");
	env_drop(env, "never there");
	assert_null(env_find(env, "A"));
	assert_string_equal(env_at(env, 0)->name, "B");
	env_free(env);
	env_free(NULL);
}

static void drops_by_pattern(void **state)
{
	static const char *const drop[] = {"SLURM_*", "EXACT", NULL}, *const keep[] = {"SLURM_CONF",
										       NULL};
	static const struct {
		const char *name;
		bool stays;
	} rows[] = {
		{"SLURM_JOB_ID", false}, {"SLURM_", false}, {"EXACT", false}, {"SLURM_CONF", true},
		{"SLURM", true},	 {"EXACTLY", true}, {"EXAC", true},   {"A_SLURM_B", true},
	};
	struct env *env = env_new();
	char longer[300] = "SLURM_";

	memset(longer + 6, 'X', sizeof longer - 7);
	assert_int_equal(env_set(env, longer, "v", ENV_FROM_USER, NULL, NULL), 0);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		assert_int_equal(env_set(env, rows[i].name, "v", ENV_FROM_USER, NULL, NULL), 0);
	env_drop_matching(env, drop, keep);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		assert_int_equal(env_find(env, rows[i].name) != NULL, rows[i].stays);
	assert_int_equal(env_count(env), 5);
	env_free(env);
}

/* More entries than the first table holds; every entry is found while others are deleted. */
static void many(void **state)
{
	struct env *env = env_new();
	char name[16];

	for (int i = 0; i < 1000; i++) {
		sprintf(name, "V%d", i);
		assert_int_equal(env_setf(env, name, ENV_FROM_USER, NULL, NULL, "%d", i), 0);
	}
	for (int i = 0; i < 1000; i += 2) {
		sprintf(name, "V%d", i);
		env_drop(env, name);
	}
	assert_int_equal(env_count(env), 500);
	for (int i = 0; i < 1000; i++) {
		char value[16];

		sprintf(name, "V%d", i);
		sprintf(value, "%d", i);
		if (i % 2)
			assert_string_equal(env_get(env, name), value);
		else
			assert_null(env_find(env, name));
	}
	struct env *copy = env_copy(env);

	env_free(env);
	assert_int_equal(env_count(copy), 500);
	assert_string_equal(env_get(copy, "V999"), "999");
	env_free(copy);
}

static void applies(void **state)
{
	struct env *base = make((const char *[]){"A", "1", "B", "2", "C", "3"}, 3);
	struct env *changes = env_new();

	env_set(changes, "B", NULL, ENV_FROM_BERTH, "not for ranks", NULL);
	env_set(changes, "C", "4", ENV_FROM_OPTION, "--c", NULL);
	env_set(changes, "D", "5", ENV_FROM_BERTH, NULL, NULL);
	env_set(changes, "E", NULL, ENV_FROM_BERTH, NULL, NULL);
	assert_int_equal(env_apply(base, changes, NULL), 0);
	assert_int_equal(env_count(base), 3);
	assert_string_equal(env_get(base, "A"), "1");
	assert_null(env_find(base, "B"));
	assert_string_equal(env_get(base, "C"), "4");
	assert_int_equal(env_find(base, "C")->from, ENV_FROM_OPTION);
	assert_string_equal(env_find(base, "C")->why, "--c");
	assert_string_equal(env_get(base, "D"), "5");
	assert_null(env_find(base, "E"));
	env_free(base);
	env_free(changes);
}

static void becomes_envp(void **state)
{
	struct env *env = make((const char *[]){"A", "1", "EMPTY", "", "B", "x=y"}, 3);

	env_set(env, "GONE", NULL, ENV_FROM_BERTH, NULL, NULL);
	char **envp = env_to_envp(env);

	assert_string_equal(envp[0], "A=1");
	assert_string_equal(envp[1], "EMPTY=");
	assert_string_equal(envp[2], "B=x=y");
	assert_null(envp[3]);
	free(envp);
	env_free(env);
	envp = env_to_envp(NULL);
	assert_null(envp[0]);
	free(envp);
}

/* A process may be started with any strings as its environment. */
static void captures(void **state)
{
	const char *odd[] = {"A=1", "nothing", "=x", "A=2", "B=", "C=a=b", NULL};
	char **saved = environ;

	environ = (char **)odd; /* only read */
	struct env *env = env_capture();

	environ = NULL;
	struct env *none = env_capture();

	environ = saved;
	assert_int_equal(env_count(env), 3);
	assert_string_equal(env_get(env, "A"), "1"); /* the first one, as with getenv */
	assert_string_equal(env_get(env, "B"), "");
	assert_string_equal(env_get(env, "C"), "a=b");
	assert_int_equal(env_find(env, "C")->from, ENV_FROM_USER);
	assert_int_equal(env_count(none), 0);
	env_free(env);
	env_free(none);
}

static void provenance(void **state)
{
	assert_string_equal(env_from_name(ENV_FROM_OPTION), "option");
	assert_string_equal(env_from_name(ENV_FROM_USER), "user");
	assert_string_equal(env_from_name(ENV_FROM_SITE), "site");
	assert_string_equal(env_from_name(ENV_FROM_SCHEDULER), "scheduler");
	assert_string_equal(env_from_name(ENV_FROM_BERTH), "berth");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),	cmocka_unit_test(sets_and_drops),
		cmocka_unit_test(many),		cmocka_unit_test(applies),
		cmocka_unit_test(becomes_envp), cmocka_unit_test(captures),
		cmocka_unit_test(provenance),	cmocka_unit_test(drops_by_pattern),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
