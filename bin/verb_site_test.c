/* SPDX-License-Identifier: BSD-3-Clause */
/* berth site-test: a script that calls berth's own commands. It is installed with the job scripts;
 * its options are its own. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "stages.h"
#include "verb.h"

/* Below the parent of berth's directory: as installed, and in a build directory. */
static const char *const places[] = {"share/berth/jobscripts/site-test", "jobscripts"};

/* Return 0, or -ERR_UNAVAILABLE. */
static int find_script(const char *self, char *out, size_t size, struct error *err)
{
	char prefix[PATH_MAX], *slash;

	snprintf(prefix, sizeof prefix, "%s", self);
	for (int up = 0; up < 2 && (slash = strrchr(prefix, '/')); up++)
		*slash = 0;
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		snprintf(out, size, "%s/%s/site-test.sh", prefix, places[i]);
		if (!access(out, R_OK))
			return 0;
	}
	return error_set(err, ERR_UNAVAILABLE,
			 "the site test is not installed: there is no %s/%s/site-test.sh", prefix,
			 places[0]);
}

int verb_site_test(int argc, char **argv)
{
	char self[PATH_MAX], script[PATH_MAX + 64], **line;
	const char *const begin[] = {"sh", script, self, NULL};
	struct words words = {0};
	struct error err = {0};
	int rc = file_find_self(self, sizeof self, &err);

	if (!rc)
		rc = find_script(self, script, sizeof script, &err);
	if (!rc) {
		words_add_list(&words, begin);
		words_add_list(&words, (const char *const *)argv + 1);
		line = words_end(&words);
		if (line)
			execv("/bin/sh", line);
		error_set(&err, ERR_UNAVAILABLE, "cannot run /bin/sh: %m");
	}
	return verb_fail(&err);
}
