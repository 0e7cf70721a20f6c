// node encode.js MODULES JOBS: ids by Hugging Face's Rust implementation. JOBS is a JSON list of {"tokenizer": FILE,
// "texts": [FILE, ...], "out": FILE}; a line of `out` is {"ids": [...], "seconds": that one text took}.
const fs = require("fs");
const { Tokenizer } = require(require.resolve("@anush008/tokenizers", { paths: [process.argv[2]] }));
(async () => {
  for (const job of JSON.parse(fs.readFileSync(process.argv[3], "utf8"))) {
    const tokenizer = Tokenizer.fromString(fs.readFileSync(job.tokenizer, "utf8"));
    const lines = [];
    for (const path of job.texts) {
      const start = process.hrtime.bigint();
      const ids = (await tokenizer.encode(fs.readFileSync(path, "utf8"))).getIds();
      const seconds = Number(process.hrtime.bigint() - start) / 1e9;
      lines.push(JSON.stringify({ ids, seconds }) + "\n");
    }
    fs.writeFileSync(job.out, lines.join(""));
  }
})();
