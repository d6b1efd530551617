/* SPDX-License-Identifier: BSD-3-Clause */
#include "files.h"

#include "../unit/rows.h"

#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

char *read_text(const char *path)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t size = 0;

	if (!file)
		fail_msg("%s cannot be read", path);
	if (getdelim(&text, &size, '\0', file) < 0)
		text = strdup(""); /* an empty file */
	fclose(file);
	assert_non_null(text);
	return text;
}

void write_text(const char *path, const char *text, unsigned mode)
{
	FILE *file = fopen(path, "we");

	if (!file)
		fail_msg("%s cannot be written", path);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(chmod(path, (mode_t)mode), 0);
}

const char *make_dir(void)
{
	static char path[PATH_MAX];
	const char *tmp = getenv("TMPDIR");

	snprintf(path, sizeof path, "%s/berth-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(path));
	return path;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void remove_tree(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_parents(char *path)
{
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
	}
}

void put(const char *root, const char *path, const char *text)
{
	char full[PATH_MAX];

	snprintf(full, sizeof full, "%s/%s", root, path);
	make_parents(full);
	write_text(full, text, 0644);
}

void put_link(const char *root, const char *path, const char *target)
{
	char full[PATH_MAX];

	snprintf(full, sizeof full, "%s/%s", root, path);
	make_parents(full);
	assert_int_equal(symlink(target, full), 0);
}
