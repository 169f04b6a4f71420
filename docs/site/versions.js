// A site that stands alone has no choice of versions. `./dev docs --web` puts tools/dev/versions.js in place of this.
